"""Requests for programs: a piece of work, a language, a wish and a way of asking, drawn apart, so that they seldom meet
twice.
"""

from __future__ import annotations

import random

WORDS = {
    "algorithm": (
        "insertion sort|selection sort|merge sort|quicksort|heap sort|counting sort|linear search|breadth-first search|depth-first search"
        "|topological sorting|Dijkstra's algorithm|the sieve of Eratosthenes|Euclid's algorithm|Newton's method for square roots|run-length encoding"
        "|the Caesar cipher|the Luhn check|a knapsack solver|the towers of Hanoi|Pascal's triangle|a Collatz sequence|matrix transposition"
        "|fast exponentiation|Levenshtein distance|the longest common subsequence|flood fill|Kadane's algorithm|interpolation between points"
    ),
    "structure": (
        "a queue|a deque|a stack with a maximum size|a binary search tree|a min heap|a trie|a hash map|a graph with weighted edges|a ring buffer"
        "|a set of integers|a priority queue|an LRU cache|a matrix|a polynomial|a sparse vector|a doubly linked chain of nodes|a disjoint set|a bit set"
    ),
    "function": (
        "returns the middle element of a list|counts the consonants of a word|finds all numbers that occur twice|returns the index of the smallest value"
        "|checks whether a year is a leap year|turns a string into title case|removes all punctuation from a text|adds two binary numbers given as strings"
        "|returns the prime factors of a number|zips two lists into pairs|sums a list of lists by row|turns minutes into hours and minutes"
        "|replaces every vowel by a star|computes the median|computes the standard deviation|checks whether a list is sorted|rounds prices to two decimals"
        "|prints a triangle of stars|prints a chess board|returns the n-th triangular number|interleaves two strings|checks whether a number is a palindrome"
        "|picks a random element with weights|shuffles a deck of cards|counts words longer than four letters|returns the initials of a name"
        "|masks all but the last four digits of a card number|converts a number to binary|converts hexadecimal text to a number"
        "|parses a date such as 2024-03-01"
        "|finds the missing number from 1 to n|moves all zeros to the end of a list|returns the most common word|splits a text into sentences"
        "|computes the area of a circle|computes the body mass index|converts miles to kilometers|sorts words by their last letter|inverts a dictionary"
        "|groups numbers into even and odd|returns all pairs that add up to a target|makes a slug for a web address|repeats an action until it succeeds"
        "|reads numbers until the user enters a blank line|checks a password for length and digits|returns a list without its first and last element"
        "|computes the dot product of two vectors|computes a running total|finds the longest run of equal values|checks whether two rectangles overlap"
        "|counts how many days lie between two dates|formats a number with commas|translates a word into pig Latin|plays rock, paper, scissors"
        "|draws a number to guess and gives hints|computes a tip|computes the total of a bill with tax|prints a calendar of one month"
        "|reads a configuration file|logs a message with the time|copies a file|lists all files with an ending|downloads a page and saves it"
        "|sends a POST request|reads a JSON file and prints one field|writes rows to a spreadsheet file|walks through a folder tree"
        "|measures the size of a folder"
        "|starts three threads and waits for them|reads the command line|prints a table with aligned columns|encodes text as base64|hashes a password"
    ),
    "feature": (
        "list slicing|dictionaries|for loops|while loops|if and else|functions with default values|keyword arguments|unpacking|string formatting|f-strings"
        "|sets|tuples|nested loops|break and continue|exceptions|reading files|writing files|classes|class methods|static methods|properties|abstract classes"
        "|operator overloading|iterators|generators|lambda functions|map and filter|sorting with a key|modules and imports|type hints|enums|assertions"
        "|regular expressions|recursion|global variables|mutable defaults|shallow and deep copies|async functions|threads|queues|virtual environments|logging"
        "|the ternary operator|switch statements|arrays|pointers|structs|templates|promises|arrow functions|interfaces|pattern matching|closures|constants"
        "|string methods|integer division|boolean logic|bitwise operators|scope|dates and times|random numbers|command line arguments|unit tests|slots"
    ),
    "error": (
        "TypeError|NameError|KeyError|IndexError|ValueError|AttributeError|ZeroDivisionError|FileNotFoundError|ModuleNotFoundError|RecursionError|SyntaxError"
        "|UnboundLocalError|a segmentation fault|a null pointer exception|an infinite loop|an off-by-one error|a stack overflow|undefined is not a function"
        "|a missing semicolon|a merge conflict|a deadlock|a memory leak|UnicodeDecodeError|PermissionError|StopIteration|a CORS error|error 404|error 500"
    ),
    "page": (
        "a sign-up form|a table of opening hours|a list of links|a header with a logo|two columns|a card with an image|a dark theme|a dropdown menu|a slider"
        "|a progress bar|a search box|a gallery of three pictures|a counter with plus and minus|a quiz with one question"
        "|a list that grows when a button is pressed"
        "|a clock that shows the time|tabs|a pop-up|a page not found message|a timetable|a profile of a person|a newsletter box|a map placeholder|a price list"
    ),
    "query": (
        "all customers without an order|the average price of each category|the three oldest members|orders of last month|names that start with M"
        "|the number of rows a day|products that were never sold|the second highest salary|duplicates by email|the total of each customer"
        "|everything between two dates|the newest entry of each user|rows where a column is null|the five cities with most people|students above the average"
    ),
    "command": (
        "list files by size|count the words of a file|find a word in many files|show running processes|make a folder and enter it|copy a folder"
        "|rename many files"
        "|show the last lines of a log|change permissions|compress a folder|see free disk space|kill a process|compare two files|replace a word in a file"
        "|create a branch in git|undo the last commit|see who changed a line|merge a branch|ignore a file in git|install a Python package|start a web server"
        "|schedule a job|set a variable in the shell|loop over files|send output to a file|connect to another machine|build a Docker image|run a container"
    ),
    "library": (
        "random|math|datetime|collections|itertools|json|os|pathlib|re|sqlite3|statistics|string|time|unittest|logging|functools|heapq|textwrap|enum|copy"
        "|tkinter|turtle|numpy|pandas|matplotlib|requests|pytest|asyncio|decimal|fractions|secrets|shutil|zipfile|urllib|typing|bisect"
    ),
    "language": (
        "Python|Python|Python|Python|Python|JavaScript|Java|C|C++|Go|Rust|TypeScript|Ruby|C#|PHP|Swift|Kotlin|R"
    ),
}  # fmt: skip
"""of each slot that is filled on its own, between bars; what stands twice comes twice as often"""
OPERATION = (
    "insert|remove|contains|size|peek|clear|update|merge with another one|iterate|copy|find the minimum|count".split(
        "|"
    )
)
THING = (
    "account|book|student|ticket|invoice|car|player|recipe|song|animal|shape|vector|message|course|temperature|product|robot|task|city|order|playlist"
    "|sensor|movie|loan|vehicle|patient|flight|hotel room|pixel|clock"
).split("|")  # fmt: skip
FIELD = (
    "title|owner|price|balance|age|grade|speed|date|size|color|weight|status|rating|author|quantity|email|address|level|year|x|y|duration|score|country"
).split("|")  # fmt: skip

ASKED = (
    "{Work}.",
    "{Work}.",
    "Can you {work}?",
    "Please {work}.",
    "I want to {work}. Where do I begin?",
    "How would I {work}?",
    "For my homework I have to {work}. Help me.",
    "Show me how to {work}.",
    "I am new to programming. How do I {work}?",
    "{Work}, and keep it short.",
    "{Work}. Use only what comes with the language.",
    "Could you {work} and tell me how it works?",
    "Task: {work}.",
    "We need to {work}.",
)
WISH = (
    "", "", "", "", "", " Add a docstring.", " Include an example of how it is used.", " Handle bad input.", " Write only the code.", " Explain each part.",
    " Give the output as well.", " Use meaningful names.", " Comment the code.", " Then discuss its running time.", " Make it easy to test.",
    " Add a few tests.", " Raise an exception if the input is wrong.", " Use a loop.", " Avoid loops.", " Use a function for every step.",
    " Start with a short plan.", " Put it in a main function.", " Say which mistakes are common.", " Keep it under twenty lines.",
)  # fmt: skip
WORK = {
    "algorithm": (
        "implement {algorithm} in {language}",
        "code {algorithm} in {language} and trace it on {numbers}",
        "write {algorithm} in {language} step by step",
    ),
    "structure": (
        "implement {structure} in {language} with the operations {operation} and {operation2}",
        "write {structure} in {language} from scratch",
        "write a {language} class for {structure} that can {operation}",
    ),
    "class": (
        "write a {language} class for {a_thing} with {field} and {field2}",
        "model {a_thing} with {field}, {field2} and {field3} in {language}",
        "write a class {Thing} in {language} with a method that changes its {field}",
        "write a base class for {a_thing} and two classes that extend it in {language}",
        "sort a list of {thing} objects by {field} in {language}",
        "print every {thing} whose {field} is above {n} in {language}",
        "store each {thing} with its {field} in a dictionary in {language}",
    ),
    "function": (
        "write a {language} function that {function}",
        "create a small {language} program that {function}",
        "write code in {language} that {function}",
    ),
    "feature": ("use {feature} in {language}", "learn {feature} in {language} with two examples", "explain {feature} in {language} with code"),
    "error": ("avoid {error}", "find the cause of {error}", "reproduce {error} in a few lines and repair it"),
    "page": ("build a web page with {page}", "write the HTML and CSS for {page}", "add {page} to my page with JavaScript"),
    "query": ("write an SQL query for {query}", "query a database for {query} and explain it"),
    "command": ("{command} on Linux", "{command} from the terminal", "write a script to {command}"),
    "library": ("use the module {library} in Python", "show {n} functions of {library} with examples", "write a small Python program with {library}"),
}  # fmt: skip
KINDS = (
    "algorithm",
    "structure",
    "class",
    "class",
    "function",
    "function",
    "function",
    "feature",
    "feature",
    "error",
    "page",
    "query",
    "command",
    "library",
)


def programming_prompt(rng: random.Random) -> str:
    """A user message that asks for code, or for help with it."""
    work = rng.choice(WORK[rng.choice(KINDS)]).format(**_slots(rng))
    asked = rng.choice(ASKED).format(work=work, Work=work[0].upper() + work[1:])
    return asked + rng.choice(WISH)


def _slots(rng: random.Random) -> dict[str, str]:
    fields, operations, thing = rng.sample(FIELD, 3), rng.sample(OPERATION, 2), rng.choice(THING)
    algorithm = rng.choice(WORDS["algorithm"].split("|"))
    numbers = rng.sample(range(1, 60), rng.randint(4, 7))
    # Drawn in this order, a seed gives the prompts that docs/benchmarks.md calibrated with.
    alone = {slot: rng.choice(words.split("|")) for slot, words in WORDS.items() if slot != "algorithm"}
    return alone | {
        "algorithm": algorithm,
        "numbers": str(numbers),
        "operation": operations[0],
        "operation2": operations[1],
        "a_thing": f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}",
        "thing": thing,
        "Thing": thing.title().replace(" ", ""),
        "field": fields[0],
        "field2": fields[1],
        "field3": fields[2],
        "n": str(rng.randint(2, 9)),
    }
