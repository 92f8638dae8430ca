"""Questions about a few lines of code that the prompt itself shows: explain, mend, shorten, extend, translate."""

from __future__ import annotations

import random

NAMES = "values|items|rows|prices|words|scores|lines|users|points|orders|names|temperatures".split("|")
SHOWN = (
    "total = 0\nfor v in {xs}:\n    total += v\nprint(total)",
    "def largest({xs}):\n    best = {xs}[0]\n    for v in {xs}:\n        if v > best:\n            best = v\n    return best",
    "counts = {{}}\nfor key in {xs}:\n    counts[key] = counts.get(key, 0) + 1",
    "with open('{xs}.txt') as file:\n    {xs} = [line.strip() for line in file]",
    "{xs} = sorted({xs}, key=len)\nprint({xs}[:{n}])",
    "def is_empty({xs}):\n    return len({xs}) == 0",
    "i = 0\nwhile i < len({xs}):\n    print(i, {xs}[i])\n    i += 1",
    "class Store:\n    def __init__(self):\n        self.{xs} = []\n\n    def add(self, one):\n        self.{xs}.append(one)",
    "{xs} = [int(part) for part in text.split(',')]",
    "try:\n    first = {xs}[0]\nexcept IndexError:\n    first = None",
    "pairs = dict(zip({xs}, range({n})))",
    "import json\n\nprint(json.dumps({{'{xs}': {xs}}}, indent=2))",
    "const {xs} = [1, 2, {n}];\nconst doubled = {xs}.map(v => v * 2);\nconsole.log(doubled);",
    "for (int i = 0; i < {n}; i++) {{\n    printf(\"%d\\n\", {xs}[i]);\n}}",
    "SELECT name, COUNT(*) FROM {xs} GROUP BY name ORDER BY COUNT(*) DESC LIMIT {n};",
    "<ul id=\"{xs}\">\n  <li>one</li>\n  <li>two</li>\n</ul>",
    "from datetime import date, timedelta\n\nprint(date.today() + timedelta(days={n}))",
    "def power(base, exponent={n}):\n    result = 1\n    for _ in range(exponent):\n        result *= base\n    return result",
    "import random\n\nprint(random.sample({xs}, {n}))",
    "text = ' '.join(reversed(text.split()))",
)  # fmt: skip
ASKED = (
    "What does this code print or do?",
    "Explain these lines to a beginner.",
    "Put this into a function with a good name.",
    "Add error handling to this.",
    "Write three tests for this.",
    "Make this shorter.",
    "Add comments to every line.",
    "Rewrite this in {language}.",
    "What happens here when there are no {xs}?",
    "Extend this so that it also prints the number of {xs}.",
    "Use clearer variable names.",
    "Is there a faster way to do this?",
    "Add type hints.",
    "Which mistakes could somebody make with this?",
)
BROKEN = (
    ("def add(a, b)\n    return a + b", "a colon"),
    ("for i in range({n}):\nprint(i)", "the indentation"),
    ("{xs} = [1, 2, {n}\nprint({xs})", "a bracket"),
    ("def count({xs}):\n    for v in {xs}:\n        n = n + 1\n    return n", "a variable"),
    ("{xs} = ('a', 'b')\n{xs}.append('c')", "a type"),
    ("age = input('Age? ')\nprint(age + {n})", "a type"),
    ("print({xs}[len({xs})])", "an index"),
    ("if {xs} = {n}:\n    print('yes')", "an operator"),
    ("def first({xs}):\n    print({xs}[0])\n\nvalue = first([{n}]) + 1", "a return"),
    ("import maths\n\nprint(maths.sqrt({n}))", "an import"),
    ("while True:\n    n = {n}\n    n -= 1\n    if n == 0:\n        break", "a loop"),
    ("{xs} = {{'a': {n}}}\nprint({xs}['b'])", "a key"),
)  # fmt: skip
MEND = (
    "This fails. Correct it and say why.",
    "Find the mistake. It has to do with {part}.",
    "Python reports an error here. What is wrong?",
    "Repair this code:",
    "Why does this not work?",
)
LANGUAGES = "JavaScript|Java|C|Rust|Go|TypeScript|Ruby|Kotlin".split("|")


def snippet_prompt(rng: random.Random) -> str:
    """A user message: some lines of code, with or without a fence, before or after what is asked about them."""
    slots = {"xs": rng.choice(NAMES), "n": rng.randint(3, 12), "language": rng.choice(LANGUAGES)}
    if rng.random() < 0.35:
        code, part = rng.choice(BROKEN)
        asked = rng.choice(MEND).format(part=part)
    else:
        code, asked = rng.choice(SHOWN), rng.choice(ASKED).format(**slots)
    shown = code.format(**slots)
    if rng.random() < 0.6:
        shown = f"```\n{shown}\n```"
    return f"{shown}\n\n{asked}" if rng.random() < 0.4 else f"{asked}\n\n{shown}"
