"""Charts hold what was measured, in colours that stay, and never more of it than can be seen."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import plotly.graph_objects as plotly
import pytest

from outpace.observe.schema import RankTrace, Trace
from outpace.race.report import charts as report_charts
from outpace.race.report.layout import MOST_POINTS, looks, thinned, wrapped
from outpace.race.report.timeline import MOST_ARROWS, MOST_SPANS, MOST_STEPS, length_s, timeline_figure, window
from outpace.workloads.base import LOSS
from tests.support import made_races


@pytest.fixture(scope="module")
def usual():
    return made_races.usual()


def by_system(figure: dict) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for trace in figure["data"]:
        found.setdefault(trace["meta"], []).append(trace)
    return found


def test_plotly_knows_every_option_of_every_chart(usual):
    """Its Python half checks what the page hands to its JavaScript half."""
    race, traces = usual
    shown = window(next(iter(traces.values())), 1.0)
    charts = [report_charts.metric_curves(race), report_charts.loss_curves(race), report_charts.target_bars(race)]
    charts += [report_charts.staleness_bars(race), timeline_figure(shown, looks(race)["ddp"], 1.0)]
    charts += [*report_charts.waiting_charts(race).values(), *report_charts.share_charts(race).values()]
    for chart in charts:
        plotly.Figure(chart)
    with pytest.raises(ValueError, match="Invalid property"):
        plotly.Figure({"data": [{"type": "bar", "colour": "red"}]})


def test_every_system_has_one_colour_in_all_charts(usual):
    race, _ = usual
    for figure in (report_charts.metric_curves(race), report_charts.loss_curves(race)):
        for system, traces in by_system(figure).items():
            assert {trace["line"]["color"] for trace in traces} == {looks(race)[system].colour}
    for figure in (report_charts.target_bars(race), report_charts.staleness_bars(race)):
        for system, traces in by_system(figure).items():
            assert {trace["marker"]["color"] for trace in traces} == {looks(race)[system].colour}
    for charts in (report_charts.waiting_charts(race), report_charts.share_charts(race)):
        for system, figure in charts.items():
            assert figure["data"][0]["marker"]["color"] == looks(race)[system].colour


def test_colours_differ_and_grey_is_the_baselines(usual):
    race, _ = usual
    assert looks(race)["ddp"].colour == "var(--s0)"
    assert len(set(looks(race).values())) == len(race.entries)


def test_more_systems_than_hues_differ_by_their_dashes(usual):
    race, _ = usual
    many = tuple(made_races.plain(f"system-{number}", 10) for number in range(15))
    assert len(set(looks(replace(race, entries=many)).values())) == 15


def test_curves_are_thinned_and_keep_their_ends(usual):
    race, _ = usual
    assert max(len(trace["x"]) for trace in report_charts.loss_curves(race)["data"]) == MOST_POINTS
    assert thinned(list(range(1000)), 10)[::9] == [0, 999]


def test_every_attempt_has_a_curve_and_the_target_is_a_line(usual):
    race, _ = usual
    figure = report_charts.metric_curves(race)
    assert len(by_system(figure)["eager:quorum=adaptive,late=carry"]) == 3
    (line,) = figure["layout"]["shapes"]
    assert line["y0"] == line["y1"] == race.target


def test_a_metric_that_is_the_loss_has_one_chart_with_training_in_it():
    made = [made_races.entry("ddp", "torch DDP", 8, metric=LOSS), made_races.entry("wagma", "wagma", 7, metric=LOSS)]
    race, _ = made_races.race(*made, metric=LOSS)
    assert report_charts.loss_curves(race) is None
    assert len(report_charts.metric_curves(race)["data"]) == 4


def test_bars_show_the_time_to_the_target_and_who_never_reached_it(usual):
    race, _ = usual
    found = by_system(report_charts.target_bars(race))
    assert found["ddp"][0]["x"] == [race.seconds_to_target(race.baseline)]
    assert found["eager-solo"][0]["text"] == [" not reached"]
    assert "sgp" not in found


def test_late_shares_add_up_to_what_was_late(usual):
    race, _ = usual
    found = by_system(report_charts.staleness_bars(race))
    for entry in race.finished:
        drawn = sum(found[entry.system][0]["y"]) if entry.system in found else 0
        assert drawn == pytest.approx(entry.late_share)


def test_ranks_parts_add_up_to_their_time(usual):
    race, _ = usual
    figure = report_charts.waiting_charts(race)["ddp"]
    total = sum(trace["y"][5] for trace in figure["data"])
    assert total == pytest.approx(race.baseline.attempts[0].ranks[5].seconds, abs=1e-4)


def test_shares_add_up_to_one_and_the_even_one_is_marked(usual):
    race, _ = usual
    for figure in report_charts.share_charts(race).values():
        assert sum(sum(trace["y"]) for trace in figure["data"]) == pytest.approx(1, abs=1e-4)
        assert figure["layout"]["shapes"][0]["y0"] == 1 / 8


def test_all_small_charts_of_a_kind_have_one_scale(usual):
    race, _ = usual
    for charts in (report_charts.waiting_charts(race), report_charts.share_charts(race)):
        assert len({tuple(figure["layout"]["yaxis"]["range"]) for figure in charts.values()}) == 1


def test_spans_of_a_rank_follow_each_other_within_the_window(usual):
    _, traces = usual
    shown = window(traces["ddp/0"], 1.0)
    mine = sorted(span[2:4] for span in shown.spans if span.rank == 3)
    assert mine[0][0] == 0
    assert mine[-1][1] == pytest.approx(1.0)
    for (_, end), (begin, _) in pairwise(mine):
        assert begin == pytest.approx(end)


def test_every_late_contribution_in_the_window_has_an_arrow(usual):
    _, traces = usual
    trace = traces["eager-majority/0"]
    seconds = length_s(trace)
    end = min(rank.steps[-1].end_ns for rank in trace.ranks.values())
    begin = end - seconds * 1e9
    steps = {(rank.rank, step.number): step for rank in trace.ranks.values() for step in rank.steps}
    late = {
        (given.rank, taken.number)
        for taken in trace.rounds
        for given in taken.contributions
        if given.version < taken.number
        and taken.at_ns <= end
        and steps[given.rank, given.step].ready_ns >= round(begin)
    }
    assert late
    assert {(arrow.from_rank, arrow.round) for arrow in window(trace, seconds).arrows} == late


def test_nothing_is_carried_where_everybody_is_waited_for(usual):
    race, traces = usual
    shown = window(traces["ddp/0"], 1.0)
    assert shown.arrows == ()
    figure = timeline_figure(shown, looks(race)["ddp"], 1.0)
    assert "carried" not in {trace["name"] for trace in figure["data"]}


def test_arrows_lead_from_the_rank_to_the_round(usual):
    race, traces = usual
    shown = window(traces["eager-majority/0"], 1.0)
    figure = timeline_figure(shown, looks(race)["eager-majority"], 1.0)
    (drawn,) = [trace for trace in figure["data"] if trace["name"] == "carried"]
    first = shown.arrows[0]
    assert drawn["y"][:2] == [first.from_rank, first.to_rank]
    assert drawn["x"][:2] == [round(first.from_s, 6), round(first.to_s, 6)]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 500), (8, 500), (64, 40), (300, 5)])
def test_a_timeline_is_bounded_whatever_the_trace(ranks, steps):
    trace = made_races.Run(quorum=max(1, ranks // 2), ranks=ranks, steps=steps).trace("eager")
    shown = window(trace, length_s(trace))
    assert 0 < len(shown.spans) <= MOST_SPANS
    assert len(shown.arrows) <= MOST_ARROWS
    assert (
        max(sum(s.rank == rank and s.kind == "computing" for s in shown.spans) for rank in shown.ranks)
        <= MOST_STEPS + 1
    )


def test_a_trace_with_missing_ranks_and_one_step_is_drawn(usual):
    race, traces = usual
    whole = traces["ddp/0"].ranks
    trace = Trace(8, "ddp", 4, {6: RankTrace(6, "here", whole[6].steps[:1])})
    figure = timeline_figure(window(trace, length_s(trace)), looks(race)["ddp"], length_s(trace))
    assert figure["layout"]["yaxis"]["range"][0] > 6


def test_figures_are_plain_json_without_nan(usual):
    race, _ = usual
    for figure in (
        report_charts.metric_curves(race),
        report_charts.target_bars(race),
        *report_charts.share_charts(race).values(),
    ):
        json.dumps(figure, allow_nan=False)


def test_long_names_are_wrapped_and_tags_shown():
    assert wrapped("eager:quorum=adaptive,late=carry") == "eager:<br>quorum=adaptive,<br>late=carry"
    assert wrapped("eager:quorum=3") == "eager:quorum=3"
    assert wrapped("x" * 90) == "x" * 21 + "…"
    assert wrapped("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
