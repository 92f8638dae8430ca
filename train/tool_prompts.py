"""Requests to answer with a function call, put together from many small parts, so that no two name the same tools in
the same words.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter of a tool, its JSON type, and values a user might ask for."""

    name: str
    type: str
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class Tool:
    """A function, what it does, its parameters, and requests that name all of them."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]


def _words(name: str, values: str) -> Parameter:
    return Parameter(name, "string", tuple(values.split("|")))


def _numbers(name: str, *values: int) -> Parameter:
    return Parameter(name, "integer", values)


CITY = _words(
    "city",
    "Vienna|Dublin|Athens|Montreal|Santiago|Warsaw|Jakarta|Accra|Chicago|Naples|Geneva|Bogota|Kyoto|Tunis|Bergen|Porto",
)
DAY = _words("date", "2024-03-15|2025-01-09|2025-11-30|2026-08-21|2024-12-24|2023-06-02|2026-02-14|2025-09-01")
CLOCK = _words("time", "07:45|08:00|09:15|11:30|12:20|14:00|16:40|20:10|21:25")
PERSON = _words("name", "Alice|Bruno|Chen|Dalia|Erik|Fatima|George|Hanna|Ivan|Julio|Keiko|Liam|Mona|Nadia|Oscar|Petra")
DEVICE = _words(
    "device", "heater|fan|television|speaker|oven|printer|garage door|coffee machine|air conditioner|washing machine"
)
PLACE = _words("place", "kitchen|hallway|office|garage|nursery|attic|cellar|living room")
SONG = _words("title", "Blue Moon|Yesterday|Summertime|Clair de Lune|Waterloo|Imagine|Hey Jude|La Mer")
PRODUCT = _words("product", "keyboard|tent|blender|umbrella|desk chair|phone case|rain boots|yoga mat|toaster|monitor")
TEAM = _words("team", "red|blue|sales|support|design|night shift|marketing|research")
SUBJECT = _words("subject", "algebra|biology|geography|music|chemistry|grammar|history|drawing")
CURRENCY = _words("currency", "USD|EUR|GBP|JPY|CHF|INR|BRL|CAD")
FILE = _words("path", "notes.txt|report.pdf|photo.png|budget.xlsx|draft.md|backup.zip|todo.txt|index.html")
LANGUAGE = _words("language", "French|German|Italian|Korean|Polish|Arabic|Dutch|Swedish")
COUNT = _numbers("count", 2, 3, 5, 6, 7, 8, 9, 10, 12, 15, 20)
MINUTES = _numbers("minutes", 5, 10, 15, 20, 25, 40, 45, 90)
AMOUNT = Parameter("amount", "number", (12.5, 20, 35.75, 49.99, 80, 120, 250, 999.9))
LEVEL = _numbers("level", 1, 2, 3, 4, 5, 6, 7, 8, 9)
FLAG = Parameter("enabled", "boolean", (True, False))

TOOLS = (
    Tool(
        "get_time",
        "Tells the local time of a city.",
        (CITY,),
        ("What time is it in {city} now?", "Tell me the hour in {city}, please."),
    ),
    Tool(
        "forecast",
        "Weather of one day.",
        (CITY, DAY),
        ("Will it rain in {city} on {date}?", "I need the forecast of {date} for {city}."),
    ),
    Tool(
        "start_timer",
        "Starts a kitchen timer.",
        (MINUTES, PERSON),
        ("{name} needs a timer of {minutes} minutes.", "Count down {minutes} minutes for {name}."),
    ),
    Tool(
        "switch",
        "Turns a device on or off.",
        (DEVICE, PLACE, FLAG),
        ("Set the {device} in the {place} to {enabled}.", "The {device} of the {place} should be {enabled}."),
    ),
    Tool(
        "play_song",
        "Plays music.",
        (SONG, LEVEL),
        ("Play {title} at volume {level}.", "I would like to hear {title}, loudness {level}."),
    ),
    Tool(
        "order_product",
        "Orders from the shop.",
        (PRODUCT, COUNT, CITY),
        ("Send {count} of the {product} to {city}.", "We want {count} pieces, product {product}, shipped to {city}."),
    ),
    Tool(
        "send_message",
        "Sends a text message.",
        (PERSON, CLOCK),
        ("Let {name} know that I will be there at {time}.", "Message {name}: dinner is at {time}."),
    ),
    Tool(
        "schedule_shift",
        "Plans the work of a team.",
        (TEAM, DAY, CLOCK),
        ("The {team} team starts at {time} on {date}.", "Put team {team} down for {date}, {time}."),
    ),
    Tool(
        "convert_money",
        "Converts to another currency.",
        (AMOUNT, CURRENCY),
        ("How much is {amount} dollars in {currency}?", "Change {amount} dollars to {currency}."),
    ),
    Tool(
        "find_teacher",
        "Looks for a private teacher.",
        (SUBJECT, CITY),
        ("Who teaches {subject} in {city}?", "Look for somebody in {city} who gives lessons in {subject}."),
    ),
    Tool(
        "delete_file",
        "Removes a file.",
        (FILE, FLAG),
        ("Remove {path}, with confirm {enabled}.", "Get rid of the file {path}; enabled is {enabled}."),
    ),
    Tool(
        "rename_file",
        "Gives a file another name.",
        (FILE, PERSON),
        ("Call the file {path} after {name} from now on.", "Rename {path} to the name {name}."),
    ),
    Tool(
        "rent_car",
        "Rents a car.",
        (CITY, DAY, COUNT),
        (
            "I need a car in {city} from {date} for {count} days.",
            "Rent something in {city}: {count} days, first day {date}.",
        ),
    ),
    Tool(
        "add_score",
        "Writes down points.",
        (TEAM, COUNT),
        ("{count} points for the {team} team!", "Give team {team} another {count} points."),
    ),
    Tool(
        "find_course",
        "Finds a language course.",
        (LANGUAGE, CITY, LEVEL),
        (
            "Is there a {language} class of level {level} in {city}?",
            "I want to learn {language} in {city}, level {level}.",
        ),
    ),
    Tool(
        "pay_invoice",
        "Pays a bill.",
        (PERSON, AMOUNT, CURRENCY),
        ("Transfer {amount} {currency} to {name}.", "Pay the bill of {name}: {amount} {currency}."),
    ),
    Tool(
        "wake_me",
        "Sets the alarm clock.",
        (CLOCK, DAY),
        ("Wake me at {time} on {date}.", "I must get up at {time} on {date}; set the alarm."),
    ),
    Tool(
        "find_hotel",
        "Looks for rooms.",
        (CITY, DAY, COUNT),
        (
            "A room in {city} for {count} nights from {date}.",
            "Find us a hotel in {city}, arriving {date}, {count} nights.",
        ),
    ),
    Tool(
        "track_parcel",
        "Says where a parcel is.",
        (Parameter("number", "string", ("ZX-881", "PK4410", "A77-20", "LM0093", "Q-5512", "TR-9001")),),
        ("Where is parcel {number}?", "Has {number} arrived yet?"),
    ),
    Tool(
        "log_meal",
        "Keeps a food diary.",
        (_words("food", "lentil soup|two apples|rice and beans|a cheese sandwich|oatmeal|grilled fish"), CLOCK),
        ("I had {food} at {time}.", "Write down {food}, eaten at {time}."),
    ),
)

PLAIN = (
    "Reply with one JSON object that has the keys name and arguments.",
    "Answer with the function call in JSON and nothing else.",
    "Write the call as JSON.",
    "Only output the JSON of the call.",
    'Use the form {"tool": ..., "parameters": ...}.',
    "Give the arguments as a JSON object.",
)
WHICH = (
    "Choose the right function and write the call in JSON.",
    "Which of them fits? Answer with its call as a JSON object.",
)


def tool_prompt(rng: random.Random) -> str:
    """A user message: one to three tools in one of four notations, a request, and how to answer; the order varies."""
    tool, *others = rng.sample(TOOLS, rng.choice([1, 1, 2, 3]))
    tools = [tool, *others]
    rng.shuffle(tools)
    notation = rng.choice([_signature, _signature, _described, _schema, _listed])
    heading = rng.choice(
        ["Tools:", "You can use these functions:", "Functions you may call:", "The following tools exist."]
    )
    offered = (
        "\n".join([heading, *map(notation, tools)])
        if others
        else f"{rng.choice(['Here is a tool.', 'The only function is', 'A function to use:'])} {notation(tool)}"
    )
    values = {parameter.name: rng.choice(parameter.values) for parameter in tool.parameters}
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    request = rng.choice(tool.requests).format(**said)
    asked = f"{rng.choice(['User:', 'Request:', 'The user says:', 'Question:', 'Task:'])} {request}"
    how = rng.choice(WHICH if others and rng.random() < 0.5 else PLAIN)
    return rng.choice(["\n", "\n", " ", "\n\n"]).join(
        [offered, how, asked] if rng.random() < 0.4 else [offered, asked, how]
    )


def _signature(tool: Tool) -> str:
    return f"{tool.name}({', '.join(f'{p.name}: {p.type}' for p in tool.parameters)})"


def _described(tool: Tool) -> str:
    return f"{tool.name}({', '.join(p.name for p in tool.parameters)}) - {tool.about}"


def _schema(tool: Tool) -> str:
    properties = {p.name: {"type": p.type} for p in tool.parameters}
    return json.dumps(
        {"name": tool.name, "description": tool.about, "parameters": {"type": "object", "properties": properties}}
    )


def _listed(tool: Tool) -> str:
    return "\n".join([f"- {tool.name}: {tool.about}", *(f"  - {p.name} ({p.type})" for p in tool.parameters)])
