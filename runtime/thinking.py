"""Chats that ask for thinking where the drafter was trained without it, or the other way round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .bundle.manifest import ThinkingRecord

MODES = {True: "with thinking", False: "without thinking"}


def thinking_note(record: ThinkingRecord | None, variables: Mapping[str, Any] | None) -> str | None:
    """A sentence for the user where a chat with the template's `variables` asks for the other mode than the drafter's;
    None where not, or not known.
    """
    if record is None or record.drafter is None:
        return None
    asked = (
        record.default if variables is None or record.variable not in variables else bool(variables[record.variable])
    )
    if asked is None or asked == record.drafter:
        return None
    setting = json.dumps({record.variable: record.drafter})
    return (
        f"The drafter was trained {MODES[record.drafter]} and this chat is {MODES[asked]}: the text is right, but fewer"
        f" proposals will be accepted. The drafter's own way is chat_template_kwargs {setting}."
    )
