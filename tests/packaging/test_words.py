"""Words that were given up for standard ones stay away: from names in the code, from files, and from the documents."""

from __future__ import annotations

import io
import re
import tokenize

from tree import ROOT, tracked

NAMES = {
    "_worth": "best_rate",
    "_put_by": "reserved",
    "has_chances": "reports_confidence",
    "unseen": "pending_rows",
    "Shares": "AcceptanceRates",
    "rounds_alike": "bitwise_equal",
    "supersede": "replace_all_uses",
    "tidy": "eliminate_dead_nodes",
    "_hand_on": "_bypass",
    "Payload": "WeightBinding",
    "Payloads": "WeightBindings",
    "Stack": "StackedWeight",
    "whole_blocks": "pad_to_groups",
    "Moments": "Hessians",
    "CalibratedBlocks": "GptqGroups",
    "letting_go": "release_pages",
    "let_go": "release_pages",
    "Donor": "ReusedTarget",
    "find_donor": "ReusedTarget",
    "unsaid": "default",
    "UNSAID": "DEFAULTS",
    "_check_sayable": "_check_representable",
}
"""identifier → what it is called now"""
FILES = {
    "mil": "evaluator",
    "stateful": "apple",
    "products": "transpose",
    "ledger": "cycle_log",
    "moments": "hessians",
    "calibrated": "gptq",
    "words": "emitter",
    "estimates": "acceptance_rates",
}
"""module or folder of the packages → what it is called now"""
DOCUMENTS = {
    "look-up": "prompt lookup",
    "without a word": "silently",
    "let go of": "released",
    "rounds alike": "bitwise equal",
    "stateful": "Apple",
    "ledger": "log of cycles",
    "chances": "confidence",
    "moments": "Hessians",
}
"""words of a text → those to use"""
PACKAGES = ("cli", "compile", "export", "runtime", "train")


def _code() -> list[str]:
    """Python files but this one."""
    return [file.as_posix() for file in tracked() if file.suffix == ".py" and file.name != "test_words.py"]


def _identifiers(file: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO((ROOT / file).read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def test_no_name_is_of_the_old_words() -> None:
    found = {file: sorted(_identifiers(file) & NAMES.keys()) for file in _code()}
    assert {file: [f"{name}: now {NAMES[name]}" for name in names] for file, names in found.items() if names} == {}


def test_no_module_is_of_the_old_words() -> None:
    parts = {
        (file, part.removesuffix(".py")) for file in _code() for part in file.split("/") if file.startswith(PACKAGES)
    }
    assert sorted((file, f"{part}: now {FILES[part]}") for file, part in parts if part in FILES) == []


def test_no_document_is_of_the_old_words() -> None:
    pages = [
        file for file in tracked() if file.suffix == ".md" and file.parts[0] in ("docs", "README.md", "CONTRIBUTING.md")
    ]
    found = [
        (page.as_posix(), f"{word}: now {now}")
        for page in pages
        for word, now in DOCUMENTS.items()
        if re.search(rf"\b{word}", (ROOT / page).read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert found == []
