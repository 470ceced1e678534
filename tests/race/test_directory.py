"""A run directory: what was written is read back, and what is none is refused in words."""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.errors import InvalidRules, OutpaceError, TraceInvalid
from outpace.race import directory
from outpace.race.result import Attempt
from tests.support.raced_by_hand import attempt, race

RACE = race(("ddp", [attempt(3.0, (0.0, 0.5), (3.0, 0.75))]), ("wagma", [Attempt(0, "02-wagma", error="it failed")]))


def test_what_was_saved_is_loaded(tmp_path):
    directory.save(RACE, tmp_path)
    assert directory.load(tmp_path) == RACE
    assert [file.name for file in tmp_path.iterdir()] == ["race.json"]


def test_a_loss_that_diverged_is_valid_json_and_comes_back_as_no_number(tmp_path):
    directory.save(race(("ddp", [attempt(3.0, (3.0, math.inf))])), tmp_path)
    json.loads((tmp_path / "race.json").read_text(), parse_constant=pytest.fail)
    assert math.isnan(directory.load(tmp_path).entries[0].attempts[0].curve[0].metric)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": 1}', '{"format": 99}', "nonsense", "\x00"])
def test_what_is_no_race_is_refused_in_words(tmp_path, text):
    if text is not None:
        (tmp_path / "race.json").write_text(text)
    with pytest.raises(TraceInvalid, match=r"race\.json"):
        directory.load(tmp_path)


@given(st.data())
@settings(deadline=None)
def test_a_document_with_one_strange_value_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("race")
    directory.save(RACE, path)
    document = json.loads((path / "race.json").read_text())
    strange = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([[]]) | st.just({"a": 1})
    place = document
    while isinstance(place, (dict, list)) and place:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key, holder = data.draw(st.sampled_from(keys)), place
        place = holder[key]
        if data.draw(st.booleans()):
            break
    holder[key] = data.draw(strange)
    (path / "race.json").write_text(json.dumps(document))
    with suppress(TraceInvalid):  # and nothing else
        directory.load(path)


@pytest.mark.parametrize("outside", ["/etc", "../other"])
def test_a_recording_lies_within_the_run_directory(tmp_path, outside):
    directory.save(race(("ddp", [Attempt(0, outside)])), tmp_path)
    with pytest.raises(TraceInvalid, match="outside"):
        directory.load(tmp_path)


def test_a_directory_that_is_not_empty_is_not_overwritten(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(InvalidRules, match="not empty"):
        directory.make(tmp_path)
    assert directory.make(tmp_path / "new") == tmp_path / "new"


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutpaceError, match="cannot be made"):
        directory.make(tmp_path / "file" / "below")
