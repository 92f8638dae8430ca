"""The noise: Philox as published, uniform, and independent between tokens, positions and seeds."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_compile.runtime.sampling.noise import LARGEST, gumbel, noise_of, philox, words_of

# Known answers of the authors' test vectors for Philox-4x32-10: counter, key, output.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), VECTORS)
def test_the_generator_gives_the_published_answers(counter, key, wanted):
    words = philox(key, tuple(np.array([word], np.uint64) for word in counter))
    assert tuple(int(word[0]) for word in words) == wanted


def test_a_token_has_its_noise_whoever_else_is_asked_for():
    seed, position, vocab = 0x1234_5678_9ABC_DEF0, 70_001, 50_003
    whole = words_of(seed, position, np.arange(vocab))
    for ids in (np.array([0]), np.array([vocab - 1]), np.array([1, 2, 3, 49_152]), np.arange(17, 40_000, 7)):
        np.testing.assert_array_equal(words_of(seed, position, ids), whole[ids])
    for token in (0, 1, 2, 3, 41_238):  # from the definition, in plain Python
        assert int(whole[token]) == _word(seed, position, token)


def _word(seed: int, position: int, token: int) -> int:
    counter, key = [token >> 2, position, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        low, high = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ key[0],
            high & 0xFFFFFFFF,
            (low >> 32) ^ counter[3] ^ key[1],
            low & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter[token & 3]


def _chi_square(cells: np.ndarray, count: int) -> float:
    found = np.bincount(cells, minlength=count)
    return float(((found - len(cells) / count) ** 2 / (len(cells) / count)).sum())


@pytest.mark.parametrize(
    "pair", [((0, 0), (0, 1)), ((0, 7), (1, 7)), ((5, 3), (5 + (1 << 32), 3))], ids=["positions", "seeds", "high word"]
)
def test_uniform_alone_and_together_with_its_neighbours(pair):
    tokens = np.arange(1 << 18)
    first, second = (words_of(seed, position, tokens).astype(np.int64) for seed, position in pair)
    # 1024 cells: mean 1023, standard deviation 45.
    assert abs(_chi_square(first >> 22, 1024) - 1023) < 6 * 45
    assert abs(_chi_square(first & 1023, 1024) - 1023) < 6 * 45
    joint = (first >> 27) * 32 + (second >> 27)
    assert abs(_chi_square(joint, 1024) - 1023) < 6 * 45
    beside = (first[:-1] >> 27) * 32 + (first[1:] >> 27)
    assert abs(_chi_square(beside[::2], 1024) - 1023) < 6 * 45


def test_noise_is_of_gumbel_and_bounded():
    noise = gumbel(1, 2, np.arange(200_000))
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.04
    ends = noise_of(np.array([0, 0xFFFFFFFF], np.uint64))
    assert np.isfinite(ends).all()
    assert ends[1] == pytest.approx(LARGEST)
