"""`python -m … MODEL GIVEN.npz ANSWERS.npz`: run entry points of a `.aimodel` on stored inputs, in this process.

Keys of GIVEN are FUNCTION/STATE and FUNCTION/CALL/INPUT; those of ANSWERS add what each call gave, and the state after
it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


async def answer(model: Path, given: dict[str, Array]) -> dict[str, Array]:
    """What every call gives, and the states after it."""
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray

    answers: dict[str, Array] = {}
    async with AIModelAsset.load(model).executable() as loaded:
        for name in dict.fromkeys(key.partition("/")[0] for key in given):
            function = loaded.load_function(name)
            state = {key: NDArray(given[f"{name}/{key}"]) for key in function.desc.state_names}
            number = 0
            while any(key.startswith(f"{name}/{number}/") for key in given):
                inputs: Any = {key: NDArray(given[f"{name}/{number}/{key}"]) for key in function.desc.input_names}
                results: Any = await function(inputs=inputs, state=state)
                answers |= {
                    f"{name}/{number}/{key}": np.array(value.numpy())
                    for key, value in (*results.items(), *state.items())
                }
                number += 1
    return answers


def main(model: str, given: str, answers: str) -> None:
    """See the module."""
    with np.load(given) as stored:
        found = asyncio.run(answer(Path(model), dict(stored)))
    np.savez(answers, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
