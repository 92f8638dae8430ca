"""Prompts to train on: templates filled with word lists, and text from the standard library.

Every prompt is a user message, before any chat template. Calls of functions, word problems and snippets of code are put
together in files of their own. Prompts that the target itself makes up need the target: `responses.py`.
"""

from __future__ import annotations

import inspect
import itertools
import pkgutil
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from .programming_prompts import programming_prompt
from .snippet_prompts import snippet_prompt
from .tool_prompts import tool_prompt
from .word_problems import word_problem

SLOTS: dict[str, list[str]] = {
    "topic": """gravity|photosynthesis|the water cycle|inflation|the French Revolution|machine learning|vaccines|plate tectonics
        |black holes|the immune system|supply and demand|evolution|electric cars|solar panels|the Roman Empire|jazz music|chess openings
        |climate change|the human heart|volcanoes|coral reefs|blockchain|the internet|DNA|the moon landing|impressionist painting|yoga
        |the Great Wall of China|bees and pollination|coffee growing|the periodic table|public libraries|democracy|tides|rainbows
        |the printing press|antibiotics|sleep|memory|dreams|the Silk Road|the Olympics|steam engines|nutrition|meditation|renewable energy
        |the stock market|recycling|space telescopes|dinosaurs|deserts|rivers|the brain|quantum computers|batteries|bridges
        |earthquakes|Shakespeare|the violin|folk tales|urban gardening|whales|tea|bread making|glass|paper|wheat|the compass""".split("|"),
    "task": """reverses a list|finds the largest number in a list|counts the vowels in a string|sorts a list of numbers|merges two dictionaries
        |reads a text file and counts its words|computes the average of a list|checks whether two words are anagrams|removes duplicates from a list
        |converts Celsius to Fahrenheit|flattens a nested list|finds the second largest element|computes a factorial|multiplies two matrices
        |checks whether a number is even|finds the longest word in a sentence|computes the greatest common divisor|generates the first n squares
        |capitalizes each word of a sentence|validates an email address|counts how often each letter occurs|rotates a list by k places
        |performs a binary search|implements a stack|implements a queue with two stacks|traverses a binary tree in order|finds the shortest path in a graph
        |parses a line of comma separated values|computes compound interest|converts a Roman numeral to an integer|checks balanced brackets
        |computes the distance between two points|rolls two dice and returns the sum|formats a duration in seconds as hours and minutes
        |groups words by their first letter|finds the common elements of two lists|sums the digits of a number|splits a list into chunks
        |retries a function up to three times|caches results of a slow function|counts lines in a file|writes a list of records to JSON""".split("|"),
    "language": "Python|JavaScript|Java|C|Rust|Go|TypeScript|Ruby|C++".split("|"),
    "person": "Anna|Ben|Carla|David|Emma|Farid|Grace|Hiro|Ines|Jack|Kofi|Lena|Mario|Nina|Omar|Priya|Quinn|Rosa|Sam|Tara".split("|"),
    "thing": "apples|pencils|marbles|stickers|books|cookies|oranges|coins|flowers|tickets|balloons|cards|shells|eggs|candles|bottles".split("|"),
    "place": """Paris|Tokyo|Cairo|New York|Lima|Sydney|Nairobi|Oslo|Rome|Mumbai|Toronto|Berlin|Seoul|Madrid|Istanbul|Prague|Lisbon|Hanoi
        |a small village|the mountains|the seaside""".split("|"),
    "job": "teacher|nurse|software engineer|chef|journalist|architect|farmer|pilot|electrician|designer|accountant|gardener|musician|carpenter".split("|"),
    "skill": """learning to cook|saving money|public speaking|running a first race|learning a new language|staying focused at work|writing a resume
        |planning a holiday|sleeping better|making friends in a new city|learning the guitar|growing tomatoes|reading more books|training a puppy
        |preparing for an interview|packing for a hike|managing stress|organizing a small kitchen|studying for exams|starting a journal""".split("|"),
    "animal": "a fox|an old turtle|a brave mouse|a lonely whale|a clever crow|a shy cat|a tired horse|a curious bear|a little owl|a lost dog".split("|"),
    "product": "a coffee mug|running shoes|a desk lamp|a water bottle|a backpack|headphones|a garden chair|a notebook|a raincoat|a bicycle".split("|"),
    "word": "happy|strong|quick|quiet|bright|difficult|important|beautiful|careful|honest|brave|calm|curious|gentle|proud|simple".split("|"),
    "pair": """cats and dogs|Python and Java|tea and coffee|cities and villages|books and films|trains and planes|lists and tuples|stacks and queues
        |plants and animals|speed and velocity|weather and climate|arrays and linked lists|saving and investing|novels and poems""".split("|"),
    "trouble": """my bread never rises|my plants have yellow leaves|I cannot fall asleep|my bicycle chain keeps slipping|my phone gets hot
        |I always run late|my soup is too salty|my shoes smell|the window will not close|my back hurts after work|my cat scratches the sofa
        |I spend too much money|my internet is slow|I forget birthdays|my hands are always cold|my sister does not call me any more
        |I am bored on Sundays|my homework takes forever|the tap drips|my glasses fog up""".split("|"),
    "occasion": """a wedding|a retirement|a house move|a first day at school|a graduation|a picnic|a job change|a long train ride|a dinner party
        |a school reunion|a rainy holiday|a birthday of a ten year old|a farewell|a garden party|a camping trip|a baby shower""".split("|"),
    "food": """rice and beans|spinach|leftover chicken|a can of tuna|lentils|mushrooms|pumpkin|oats|yogurt|cabbage|carrots|tofu|noodles|apples
        |chickpeas|tomatoes|bananas|cheese|corn|peppers""".split("|"),
    "who": """Ada Lovelace|Isaac Newton|Cleopatra|Leonardo da Vinci|Nelson Mandela|Mozart|Frida Kahlo|Galileo|Amelia Earhart|Gandhi|Beethoven
        |Jane Austen|Charles Darwin|Rosa Parks|Alan Turing|Florence Nightingale|Confucius|Julius Caesar|Vincent van Gogh|Nikola Tesla""".split("|"),
    "term": """a mortgage|an algorithm|entropy|a metaphor|a vitamin|a verb|an ecosystem|a budget|a neural network|a warranty|a firewall|a satellite
        |a tariff|an enzyme|a fraction|a database|a sonnet|a glacier|a pronoun|a fossil|an engine|a virus|an orbit|a contract""".split("|"),
    "app": """a to-do list|a weather page|a quiz|a recipe book|a chat room|a bank account|a library|a parking lot|a music player|a calendar
        |a shopping cart|a school timetable|a photo album|a dice game|a note taker|a contact list|a vending machine|a thermostat""".split("|"),
    "library": "pandas|numpy|requests|sqlite3|matplotlib|json|datetime|pathlib|collections|itertools|re|unittest|threading|random|math|os".split("|"),
    "element": "a table of prices|a login form|a navigation bar|a photo gallery|a footer|a list of news|a contact form|a button that counts clicks".split("|"),
    "pattern": "phone numbers|postal codes|dates|words in capitals|web addresses|decimal numbers|quoted text|repeated words|email addresses".split("|"),
    "concept": """a closure|inheritance|recursion|an interface|a pointer|a generator|an exception|a hash table|a thread|a lambda|a module
        |a foreign key|a binary search|a queue|garbage collection|type hints|a callback|version control|unit testing|a set|slicing""".split("|"),
    "chore": """renames all photos in a folder|shows the ten largest files|counts the lines of all Python files|makes a backup of a folder
        |prints every line that contains an error|lists who is logged in|changes the owner of a file|downloads a page every hour
        |checks whether a server answers|unpacks all archives in a folder|sorts a file and removes repeated lines""".split("|"),
    "format": "a short paragraph|three sentences|a numbered list|five bullet points|simple words|one sentence|a table|steps".split("|"),
}  # fmt: skip
SLOTS = {slot: [" ".join(word.split()) for word in words] for slot, words in SLOTS.items()}

TEMPLATES: dict[str, list[str]] = {
    "code": [
        "Write a {language} function that {task}.",
        "Write a {language} program that {task}. Add comments.",
        "How do I write code in {language} that {task}?",
        "Give me a {language} function that {task}, and show how to call it.",
        "Write a {language} class for {product}.",
        "Write unit tests in Python for a function that {task}.",
        "Explain step by step how a {language} function that {task} works.",
        "Write a Python script that {task}, then explain each line.",
        "Implement a function that {task} in {language}. Return only code.",
        "Show two ways to write a {language} function that {task}.",
        (
            "My {language} code should be a function that {task}, but it crashes on empty input. Show a version that"
            " does not."
        ),
        "Write a Python class with a method that {task} and a method that prints the result.",
        "Complete this Python function:\n\ndef solve(data):\n    # {task}\n",
        "Write a short Python program that stores {thing} with their prices in a dictionary and prints the cheapest.",
        "Write a {language} loop that prints the numbers from {n} to {big} that are divisible by {n2}.",
        (
            "Write a Python function with type hints and a docstring that {task}. Then give three example calls with"
            " their output."
        ),
        "Translate a Python function that {task} into {language}.",
        "Write an HTML form that asks for {thing}, with a button and a little CSS.",
        "Write a bash command for a folder of files about {thing}: find those larger than {big} kilobytes.",
        "Create a SQL table for {thing} with an id, a name, a price and a date, and insert {n} rows.",
        "What is the time complexity of a {language} function that {task}? Show the code.",
        "Write a recursive {language} function that {task}, and one without recursion.",
        "Design the classes of {app} in {language}. Start with the code of the most important one.",
        "Write a small {language} program for {app}.",
        "How do I use {library} in Python? Show a short example about {thing}.",
        "Show five useful functions of the Python module {library} with an example of each.",
        "What is {concept} in {language}? Give an example.",
        "Explain {concept} to somebody who knows a little {language}.",
        "Write a web page with {element}. Use HTML and CSS.",
        "Write the HTML of {element} for a site about {topic}.",
        "Write JavaScript that updates {element} when the page loads.",
        "Write a pattern for a regular expression that matches {pattern}, and test it in {language}.",
        "Write a shell script that {chore}.",
        "Which command {chore}? Explain its options.",
        "Write a query for a table of {thing} with name, price and day: the {n} most expensive ones of this year.",
        (
            "A database has the tables people and {thing}. Write an SQL query that joins them and counts the {thing} of"
            " each person."
        ),
        "Write a Python generator that yields {thing} from a file one at a time.",
        "Write a {language} enum and a switch over it for {app}.",
        (
            "Write a Python function that takes a list of {thing} as dictionaries and returns those that cost less than"
            " {m}."
        ),
        "Write a Dockerfile for a {language} program that serves {app}.",
        "Write a makefile for a C program about {thing} with the files main.c and {noun}.c.",
        (
            "Write a Python program that asks the user for {n} numbers and prints the largest, the smallest and the"
            " average."
        ),
        "Write a Python function that {task} using only {library} from the standard library, if it helps.",
        "Write code that draws a bar chart of {thing} a month with matplotlib.",
        "Write a REST endpoint in {language} that returns {thing} as JSON.",
        "Write a test with mock objects for {app} in {language}.",
    ],
    "tools": [
        (
            "You can call the function get_{noun}({field}: string, limit: integer). Reply with a JSON object with"
            ' "name" and "arguments" for: show me {n} results about {topic}.'
        ),
        'Write a JSON object describing {person}, a {job} from {place}, with the keys "name", "job", "city" and "age".',
        "Write a JSON array of {n} objects, each with an id, a name and a price, about {thing}.",
        "Turn this into JSON: {person} bought {n} {thing} for {m} dollars in {place}.",
        'Extract the fields as JSON with keys "person", "city" and "date": {person} will travel to {place} on May {n}.',
        "Write a JSON schema for an object that describes {product}.",
        "Call the tool create_event(title, date, location) as JSON for: meeting with {person} in {place} on June {n}.",
        "Write a YAML file that lists {n} {thing} with a name and a color.",
        "Write an SQL query that selects all {thing} with a price above {m}.",
        "Make a CSV table with {n} rows about {topic}. Use a header line.",
        (
            'Functions: book_table(restaurant, people, time), find_recipe(dish, minutes). Answer with JSON {{"name":'
            ' ..., "arguments": ...}}. Request: {person} wants a table for {n} people in {place}.'
        ),
        (
            "Here is a function: order_item(name, quantity, price). Give only its arguments as JSON for: {n} {thing} at"
            " {m} dollars each."
        ),
        (
            'Fill this JSON template: {{"customer": "", "items": [], "total": 0}}. {person} ordered {n} {thing} for {m}'
            " dollars."
        ),
        (
            "Write a JSON configuration file for an application about {topic} with a name, a port, a list of users and"
            " a debug flag."
        ),
        "List {n} facts about {topic} as a JSON array of strings.",
        'Return a JSON object with the keys "title", "summary" and "tags" for an article about {topic}.',
        (
            "Use the tool search_web(query, language, max_results). Question: what is new about {topic}? Answer with a"
            " JSON call."
        ),
        (
            "Set a reminder with remind(text, day, hour) for {person}: buy {thing} on Monday at {n}. Write the call as"
            " JSON."
        ),
        'Describe the address of a {job} in {place} as JSON with "street", "city", "zip" and "country".',
        "Turn this line into JSON with suitable types: id={n}, name={person}, city={place}, active=true, score={m}.",
        "Write an XML document that describes {n} {thing}.",
        "Show an example of a JSON answer of a web service that returns the {thing} of {person}.",
        "Write the data of {app} as JSON: three example records.",
        "Give an example of a JSON message that {app} sends to its server.",
        "Make a JSON object for {who} with the keys name, born, country and works.",
        "Write a GraphQL query that asks for {thing} and their prices.",
        "Write an INI file for {app} with three sections.",
        "Show a YAML pipeline with three steps for a {language} project.",
        "Describe {product} as JSON with name, price, colors and in_stock.",
        "Put this into a Markdown table: {person} has {n} {thing}, {person2} has {m} and {person3} has {n2}.",
        "Write the headers and the body of an HTTP request that adds {n} {thing}.",
        "Give me a JSON list of {n} quiz questions about {topic}, each with answer and difficulty.",
        "As JSON with the keys dish, minutes and ingredients: something with {food} and {food2}.",
        "Which language is this sentence in? Reply as a JSON object with language and confidence: {trouble}.",
        "Classify this request as billing, technical or other, in JSON with the key class: {trouble}.",
        "Write a log file of {n} lines as {app} might write it, with time and level.",
        (
            "Which of the functions add(a, b), multiply(a, b) and divide(a, b) answers this? {person} has {n} boxes of"
            " {m} {thing}. Reply in JSON."
        ),
    ],
    "reasoning": [
        "{person} has {n} {thing} and buys {m} more. How many {thing} does {person} have now? Explain step by step.",
        "{person} gives {n} of {big} {thing} to {person2}. How many are left?",
        "A box holds {n} {thing}. How many {thing} are in {m} boxes? Show your work.",
        "A car drives {big} km in {n} hours. What is its average speed?",
        "What is {big} plus {m}? Then multiply the result by {n}.",
        "If {person} is taller than {person2} and {person2} is taller than {person3}, who is the shortest? Explain.",
        (
            "A shop sells {thing} for {n} dollars each. {person} pays with {big} dollars and buys {m}. How much change"
            " does {person} get?"
        ),
        "What are the next three numbers after {n}, {n2}, {n3}? Explain the rule.",
        "Solve for x: {n}x + {m} = {big}. Show each step.",
        "Find the area of a rectangle that is {n} meters wide and {m} meters long.",
        "List the factors of {big}.",
        (
            "{person} starts work at {n} o'clock and works for {n2} hours with a break of {m} minutes. When does the"
            " day end?"
        ),
        "A recipe for {n} people needs {m} {thing}. How many are needed for {n2} people? Show how you get there.",
        "{big} {thing} are shared equally among {n} friends. How many does each get, and how many are left over?",
        "A price of {big} dollars falls by {n} percent. What is the new price?",
        "Is {big} divisible by {n}? Show your reasoning.",
        "{person} is {m} years old and {person2} is {n} years older. How old will both be in {n2} years?",
    ],
    "chat": [
        "Explain {topic} in {format}.",
        "What is {topic}?",
        "Why is {topic} important?",
        "Give me some tips for {skill}.",
        "I need advice on {skill}. What should I do first?",
        "What are the advantages and disadvantages of {topic}?",
        "Compare {pair}.",
        "What is the difference between {pair}?",
        "Plan a three day trip to {place}.",
        "Tell me a fun fact about {topic} and explain it.",
        "What does a {job} do all day?",
        "How can I become a {job}?",
        "Who should learn about {topic}, and why?",
        "Summarize the history of {topic} in {format}.",
        "Hi! My name is {person} and I am a {job}. What can you help me with?",
        "Help, {trouble}! What can I do?",
        "{trouble}. What might be the reason, and how do I solve it?",
        "I have a problem: {trouble}. Give me {n} ideas.",
        "What should I prepare for {occasion}?",
        "Make a checklist for {occasion}.",
        "What is a good present for {occasion}? My budget is {big} dollars.",
        "Suggest a dinner with {food} and {food2}.",
        "Give me a simple recipe with {food}.",
        "Is {food} healthy? How often should I eat it?",
        "Who was {who}?",
        "Name three things that {who} is known for.",
        "What would {who} think about {topic}? Imagine a short answer.",
        "What does it mean if somebody talks about {term}?",
        "Explain {term} with an example from daily life.",
        "How would a dictionary explain {term}?",
        "My child asks about {topic}. What do I say?",
        "What are common mistakes with {skill}?",
        "Make a plan of {n} weeks for {skill}.",
        "How has {topic} changed our lives?",
        "What are some myths about {topic}?",
        "Recommend {n} places to see in {place} and say why.",
        "What do people eat in {place}?",
        "Should I choose {pair}? Help me to decide.",
        "What questions should I ask a {job}?",
        "Give me {n} names for {animal} in a story for children.",
        "Tell me a joke about {thing}.",
        "Good morning! I feel {word} today. What could I do?",
    ],
    "writing": [
        "Write a short story about {animal} in {place}.",
        "Write a poem about {topic}.",
        "Write an email from {person} to a {job} asking for help with {skill}.",
        "Write a product description for {product}.",
        "Write a dialogue between {person} and {person2} about {topic}.",
        "Give me five synonyms for the word {word} and use each in a sentence.",
        "Write a slogan for a company that sells {product}.",
        "Rewrite this sentence in a formal tone: hey, {person} can't make it to {place}, sorry!",
        "Translate to simple English: the {word} {job} contemplated {topic} at considerable length.",
        "Write a letter of thanks to a {job}.",
        "Write a speech for students about {skill}.",
        "Write an invitation to {occasion}.",
        "Write a diary entry of {who}.",
        "Write a review of {product} with good and bad sides.",
        "Write a haiku about {thing}.",
        "Write a short news report about {animal} in {place}.",
        "Write a complaint to a shop because {product} arrived broken.",
        "Write an introduction for an essay about {topic}.",
        "Make this longer and friendlier: {person}, please bring {thing} to {place} on day {n}.",
        "Write a conversation in which a {job} explains {term}.",
        "Continue the story: {person} opened the old box and found {thing}.",
        "Write an advertisement for {app} in {format}.",
        "Correct the spelling and grammar: {person} dont has no {thing} becaus he go to {place} yestarday.",
    ],
}
DOCUMENT_TEMPLATES = [
    "Summarize the following text.\n\n{text}",
    "Read this and explain the main points:\n\n{text}",
    "{text}\n\nWhat is this about? Answer in a few sentences.",
    "Rewrite the text below in simpler words.\n\n{text}",
]
CODE_TEMPLATES = [
    "Explain what this code does.\n\n```python\n{text}\n```",
    "Write a docstring for this function:\n\n{text}",
    "Add comments to this code:\n\n```python\n{text}\n```",
    "Refactor this Python function:\n\n{text}",
    "{text}\n\nWrite a similar function with another name.",
]


def _fill(template: str, rng: random.Random) -> str:
    small = rng.randint(2, 12)
    values = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    step = rng.randint(2, 9)
    people = rng.sample(SLOTS["person"], 3)
    values |= {"person": people[0], "person2": people[1], "person3": people[2]}
    values |= {"food2": rng.choice([food for food in SLOTS["food"] if food != values["food"]])}
    values |= {"n": str(small), "n2": str(small + step), "n3": str(small + 2 * step)}
    values |= {"m": str(rng.randint(3, 30)), "big": str(rng.randint(40, 400))}
    values |= {
        "noun": rng.choice(["news", "papers", "books", "events", "songs"]),
        "field": rng.choice(["query", "city", "name"]),
    }
    return template.format(**values)


@cache
def library_files() -> list[Path]:
    """Every source file of the standard library over 2000 bytes, its tests left out, sorted by path."""
    root = Path(inspect.__file__).parent
    skipped = {"test", "tests", "site-packages", "idle_test", "__pycache__", "encodings", "pydoc_data"}
    files = (f for f in root.rglob("*.py") if not skipped & set(f.relative_to(root).parts))
    return sorted(f for f in files if f.stat().st_size > 2000)


@cache
def _module_files() -> list[Path]:
    """Source files of the standard library's plain modules, sorted by name."""
    names = sorted(
        m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names and not m.name.startswith("_")
    )
    specs = (find_spec(name) for name in names if name not in {"this", "antigravity"})
    files = [Path(s.origin) for s in specs if s and s.origin and s.origin.endswith(".py")]
    return [f for f in files if 2_000 < f.stat().st_size < 300_000]


@cache
def library_functions() -> list[str]:
    """Top-level functions of the standard library, as source text of 200 to 1500 characters."""
    functions = []
    for file in _module_files():
        lines = file.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if line.startswith("def ")]
        blocks = ("".join(inspect.getblock(lines[i:])).rstrip() for i in starts)
        functions += [block for block in blocks if 200 <= len(block) <= 1500]
    return functions


@cache
def library_documents() -> list[str]:
    """Prose from the standard library: help topics and long module docstrings, 300 to 4000 characters."""
    from pydoc_data.topics import topics  # 700 kB of text: only when asked for

    texts = [" ".join(part.split(" ")) for text in topics.values() for part in text.split("\n\n\n")]
    return sorted(text.strip()[:4000] for text in texts if len(text) >= 300)


def template_prompts(seed: int) -> Iterator[str]:
    """Endless user messages of every kind in turn, code and tools more often: drafts pay most there.

    The same seed gives the same prompts.
    """
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], str]] = [
        partial(_templated, category) for category in (*TEMPLATES, "code", "tools", "chat")
    ]
    for kind in itertools.cycle(
        [*kinds, tool_prompt, word_problem, snippet_prompt, *[programming_prompt] * 4, _document, _library]
    ):
        yield kind(rng)


def _templated(category: str, rng: random.Random) -> str:
    return _fill(rng.choice(TEMPLATES[category]), rng)


def _document(rng: random.Random) -> str:
    return rng.choice(DOCUMENT_TEMPLATES).format(text=rng.choice(library_documents())[: rng.choice([400, 800, 1200])])


def _library(rng: random.Random) -> str:
    return rng.choice(CODE_TEMPLATES).replace("{text}", rng.choice(library_functions()))
