"""Word problems with other people, things and numbers each time, in forms from one step of arithmetic to three."""

from __future__ import annotations

import random

PEOPLE = "Adam|Bella|Cyrus|Daria|Elias|Flora|Gabriel|Helga|Igor|Jana|Karim|Lucy|Milo|Nora|Otto|Paula|Ravi|Selma|Theo|Vera".split(
    "|"
)
THINGS = (
    "stamps|beads|pears|bricks|tiles|buttons|chairs|plums|postcards|nails|lemons|pens|bags of flour|seeds|jars of"
    " honey|ribbons".split("|")
)
JOBS = "baker|painter|gardener|tailor|plumber|mechanic|courier|typist".split("|")
ANIMALS = "cows|sheep|goats|ducks|dogs|horses|geese|pigs".split("|")
FORMS = (
    "{a} collects {x} {thing} on Monday and twice as many on Tuesday. How many {thing} does {a} have after both days?",
    "{a} has {big} {thing}. {b} has {x} fewer. How many do they have together?",
    "A {job} earns {y} dollars an hour and works {x} hours a day. How much does the {job} earn in {few} days?",
    "There are {big} {thing} in a warehouse. Every day {x} of them are sold. How many remain after {few} days?",
    "{a} reads {x} pages on each weekday and {y} pages on each day of the weekend. How many pages is that in one week?",
    "A farmer keeps {x} {animals} and {y} {animals2}. A third kind brings the total to {big}. How many animals are of the third kind?",
    "A bus carries {y} people. At one stop {few} get off and {x} get on. How many people are on the bus then?",
    "{a} walks {x} kilometers in {few} hours. At the same speed, how far does {a} walk in {y} hours?",
    "One {job} needs {y} hours for a job. How long do {few} of them need if they all work equally fast?",
    "{a} saves {x} dollars a week. After how many weeks does {a} have {big} dollars? Show each step.",
    "A field is {y} meters long and {x} meters wide. How much fence goes around it, and how large is it?",
    "{a} is {few} years older than {b}. Together they are {big} years old. How old is each of them?",
    "A jacket costs {big} dollars. With a discount of {ten} percent, what does {a} pay?",
    "{a}, {b} and {c} stand in a line. {a} is behind {b}, and {c} is in front of {b}. Who is first? Explain why.",
    "Each of {few} boxes has {x} {thing}, and {y} more lie on the table. How many {thing} are there in all?",
    "What comes next: {few}, {few2}, {few3}, {few4}, ...? Describe the pattern.",
    "{a} has {big} cents in coins of {ten} cents. How many coins can that be at most, and how many cents are left?",
    "Half of the {big2} {thing} are red and a quarter are green. How many have another color?",
    "A worker packs {x} {thing} in {few} minutes. How many are packed in an hour?",
    "The difference of two numbers is {few} and the larger one is {big}. What is the smaller one? What is their sum?",
    "Compute {x} * {y} - {few} and explain the order of the operations.",
    "Is {big} an even or an odd number? Is it a multiple of {few}? Give reasons.",
    "Divide {big} by {few}. Write the quotient and the remainder.",
    "Simplify the fraction {x}/{big}. Explain how you do it.",
    "{a} bought {few} {thing} at {x} dollars each and one bag for {y} dollars. What did everything cost?",
    "{a} lends {b} {big} dollars at {few} percent interest a year. How much is owed after one year?",
    "Water runs into a basin at {x} liters a minute. How many minutes until {big} liters are in it?",
    "A film starts at {few}:15 in the afternoon and is {y} minutes longer than an hour. When is it over?",
    "If today is Friday, which day is it {x} days from now? Think aloud.",
    "All {animals} in the barn are brown. {a} sees something white in the barn. Can it belong to the {animals}? Explain.",
    "Order these numbers from small to large: {big}, {x}, {y}, {few}, {big2}.",
    "Round {big}.{x} to the nearest ten and to the nearest whole number.",
    "{a} cuts a ribbon of {big2} centimeters into {few} equal parts. How long is each part?",
    "In a class of {y} children, {few} play chess and the others draw. What percent play chess?",
    "The scores of {a} are {x}, {y} and {big}. What is the mean score?",
    "Write {x} kilometers in meters, and {big} minutes in hours and minutes.",
    "Solve {few}x - {x} = {y} for x and check your answer.",
    "A cube has edges of {few} centimeters. What is its volume?",
    "{a} throws a coin {few} times. How likely is it that every throw shows heads?",
    "Estimate {big} times {x} first, then compute it exactly.",
)  # fmt: skip
ENDINGS = (
    "",
    "",
    "",
    " Explain your answer.",
    " Work it out in steps.",
    " Give only the result.",
    " Let us reason carefully.",
    " Write the calculation.",
)


def word_problem(rng: random.Random) -> str:
    """A user message: one of `FORMS` with its numbers, and now and then how to answer."""
    a, b, c = rng.sample(PEOPLE, 3)
    animals, animals2 = rng.sample(ANIMALS, 2)
    few, step = rng.randint(2, 9), rng.randint(2, 8)
    numbers = {
        "x": rng.randint(3, 40),
        "y": rng.randint(12, 60),
        "big": rng.randint(60, 500),
        "big2": 4 * rng.randint(5, 60),
    }
    series = {
        "ten": rng.choice([5, 10, 20, 25]),
        "few": few,
        "few2": few + step,
        "few3": few + 2 * step,
        "few4": few + 3 * step,
    }
    words = {
        "a": a,
        "b": b,
        "c": c,
        "thing": rng.choice(THINGS),
        "job": rng.choice(JOBS),
        "animals": animals,
        "animals2": animals2,
    }
    return rng.choice(FORMS).format(**words, **numbers, **series) + rng.choice(ENDINGS)
