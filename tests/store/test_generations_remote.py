"""The generation switch where nothing can be renamed: killed, rivalled or asleep; memory, S3."""

from __future__ import annotations

import pytest

from privpipe.errors import StoreError
from privpipe.store.access import generation_log
from privpipe.store.access.generation_log import publish_generation, read_newest, write_root


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["create_object", "keep_bytes"])
def test_publish__killed_at_any_step_shows_one_whole_generation(
    place: str, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """The two changes of the store that a switch makes, lost or done, and nothing between them."""
    first = publish_generation(place, "release", {"n": 1}, None)
    real = getattr(generation_log, step)

    def dying(*args: object) -> object:
        if after:
            real(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(generation_log, step, dying)
        with pytest.raises(Killed):
            publish_generation(place, "release", {"n": 2}, first)
    seen = read_newest(place, "release")
    assert seen is not None
    assert seen.content["n"] == (1 if (step, after) == ("create_object", False) else 2)
    following = publish_generation(place, "release", {"n": 3}, seen)
    assert read_newest(place, "release") == following
    assert following.number == seen.number + 1


def test_publish__of_one_who_slept_is_refused_and_sets_nothing_back(place: str) -> None:
    first = publish_generation(place, "release", {"n": 1}, None)
    second = publish_generation(place, "release", {"n": 2}, first)
    with pytest.raises(StoreError, match="first") as refused:
        publish_generation(place, "release", {"n": 3}, first)
    assert refused.value.code == "generation-taken"
    write_root(place, first)  # the last that a sleeper may do
    assert read_newest(place, "release") == second
