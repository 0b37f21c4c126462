"""The laws of the client in a thousand worlds where everything goes wrong."""

import collections

import pytest

from tests.runtime.simulation import CALLERS, STEPS, explore

WORLDS = 1008
SHARES = 12
QUICK_SHARES = 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "share",
    [pytest.param(n, marks=[pytest.mark.long] if n >= QUICK_SHARES else []) for n in range(SHARES)],
)
def test_the_laws_hold_in_every_world(share: int) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    for seed in range(share, WORLDS, SHARES):
        world = explore(seed)
        assert not world.broken, (
            f"world {seed} (python -m tests.runtime.simulation {seed}):\n" + "\n".join(world.broken)
        )
        outcomes.update(world.ended.values())
    assert sum(outcomes.values()) == CALLERS * STEPS * (WORLDS // SHARES)
    # The worlds are worth exploring: in them calls end in every way there is.
    for way in ("answered", "odd", "cancelled", "CallTimeout", "ConnectionLost"):
        assert outcomes[way] >= 50, f"only {outcomes[way]} calls were {way}"


@pytest.mark.parametrize("seed", [0, 7, 19, 77, 4711])
def test_a_world_is_the_same_again(seed: int) -> None:
    assert explore(seed).trace == explore(seed).trace


def test_worlds_differ() -> None:
    assert len({str(explore(seed).trace) for seed in range(5)}) == 5
