"""Tables, goals and the exit code's reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.bench.report import Goal, goal_lines, goals, section, sound, table, verdict_text
from infra.bench.roster import SAMPLED, UNSAMPLED, Workload
from infra.bench.trial import Cost, Export, Measurement
from infra.bench.verdict import Verdict

CLEAN = Verdict(
    sent=1_000,
    distinct=1_000,
    duplicates=0,
    lost=0,
    foreign=0,
    repeated_steps=0,
    missing_steps=0,
)


def measured(peer: str, turn: int = 0, rate: float | None = 1_000.0, **more: Any) -> Measurement:
    """A clean throughput measurement of 1,000 jobs; `more` overrides its fields."""
    plain = Measurement(
        Workload.THROUGHPUT,
        peer,
        turn,
        jobs=1_000,
        finished=True,
        verdict=CLEAN,
        rate=rate,
        cost=Cost(cpu_s=2.0, broker_cpu_s=1.0, peak_mb=80.0),
    )
    return replace(plain, **more)


def cells(text: str, peer: str) -> list[str]:
    line = next(x for x in text.splitlines() if x.startswith(f"| {peer} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_columns_of_a_table_line_up() -> None:
    lines = table(["peer", "n"], [["a", "1"], ["longer", "1,000"]]).splitlines()
    assert lines == [
        "| peer   |     n |",
        "| ------ | ----: |",
        "| a      |     1 |",
        "| longer | 1,000 |",
    ]


def test_a_row_gives_each_rate_the_median_the_ratio_and_the_costs() -> None:
    runs = [
        measured("control", 0, 4_000.0),
        measured("handoff", 0, 2_000.0),
        measured("handoff", 1, 3_000.0),
        measured("control", 1, 4_000.0),
    ]
    assert cells(section(Workload.THROUGHPUT, runs), "handoff") == [
        "handoff",
        "1,000",
        "2,000 3,000",
        "2,500",
        "0.62",
        "2.00",
        "1.00",
        "-",
        "80",
        "exactly once",
    ]


def test_costs_are_per_job_that_arrived() -> None:
    half = replace(CLEAN, distinct=500, lost=500)
    row = cells(section(Workload.THROUGHPUT, [measured("faust", verdict=half)]), "faust")
    assert row[5] == "4.00"


def test_figures_that_could_not_be_had_are_dashes() -> None:
    runs = [measured("faust", rate=None, cost=Cost())]
    assert cells(section(Workload.THROUGHPUT, runs), "faust")[2:9] == ["-"] * 7


def test_a_workload_without_a_run_says_so() -> None:
    assert "No run of it succeeded" in section(Workload.IO, [measured("handoff")])


def test_the_latency_table_has_percentiles_and_the_crash_table_the_kills() -> None:
    calm = measured(
        "handoff",
        workload=Workload.LATENCY,
        latency_ms={"p50": 60.0, "p95": 90.5, "p99": 99.0, "max": 120.0},
    )
    assert cells(section(Workload.LATENCY, [calm]), "handoff")[2:6] == [
        "60.0",
        "90.5",
        "99.0",
        "120.0",
    ]
    killed = measured("handoff", workload=Workload.CRASH, killed_at=[0.2, 0.55], seconds=31.0)
    assert cells(section(Workload.CRASH, [killed]), "handoff")[2:] == [
        "20% 55%",
        "31",
        "exactly once",
    ]


def test_the_verdict_names_each_fault_over_all_rounds() -> None:
    lost = measured("faust", verdict=replace(CLEAN, lost=2, duplicates=1))
    twice = measured("faust", 1, verdict=replace(CLEAN, duplicates=4, repeated_steps=3))
    assert verdict_text([lost, twice]) == "2 lost, 5 twice, 3 states twice"


def test_what_was_given_up_is_not_called_lost() -> None:
    late = measured("faust", finished=False, verdict=replace(CLEAN, lost=7))
    assert verdict_text([late]) == "7 not arrived in time"


def test_goals_compare_with_the_control_and_plain_faust_of_the_same_run() -> None:
    runs = [
        measured("handoff", rate=6_000.0),
        measured("control", rate=10_000.0),
        measured("faust", rate=800.0),
        measured("handoff", workload=Workload.IO, rate=2_500.0),
    ]
    assert [(g.value, g.met) for g in goals(runs)][:3] == [
        (0.6, True),
        (7.5, False),
        (2_500.0, True),
    ]


def test_a_goal_that_was_not_measured_is_neither_met_nor_missed() -> None:
    found = goals([measured("control")])
    assert [g.met for g in found] == [None] * 5
    assert goal_lines(found) == ""


def test_a_missed_goal_says_so() -> None:
    assert goal_lines([Goal("speed", 0.4, 0.5)]) == "speed: 0.40, goal 0.5: MISSED"
    assert goal_lines([Goal("cost", 1.08, most=1.07)]) == "cost: 1.08, goal at most 1.07: MISSED"
    assert goal_lines([Goal("cost", 1.07, most=1.07)]) == "cost: 1.07, goal at most 1.07: met"


def traced(peer: str, turn: int, cpu_s: float, export: Export | None = None) -> Measurement:
    """1,000 jobs for `cpu_s` of the stages."""
    cost = Cost(cpu_s=cpu_s)
    return measured(peer, turn, workload=Workload.TRACING, cost=cost, export=export)


def pairs_of_tracing() -> list[Measurement]:
    export = Export(spans=4_000, rate=12_000.0, cpu_s=0.2)
    return [
        traced(UNSAMPLED, 0, 0.1),
        traced(SAMPLED, 0, 0.105, export),
        traced(SAMPLED, 1, 0.206, replace(export, rate=9_000.0)),
        # A minute in which all cost twice as much.
        traced(UNSAMPLED, 1, 0.2),
        traced(UNSAMPLED, 2, 0.1),
        traced(SAMPLED, 2, 0.12, replace(export, rate=11_000.0)),
    ]


def test_the_tracing_table_has_each_pair_and_the_tracers_own_cost_beside_it() -> None:
    text = section(Workload.TRACING, pairs_of_tracing())
    assert cells(text, SAMPLED)[3:] == [
        "105.0 206.0 120.0",
        "120.0",
        "1.050 1.030 1.200",
        "1.050",
        "200.0",
        "11,000",
        "exactly once",
    ]
    assert cells(text, UNSAMPLED)[7:9] == ["-", "-"]


def test_the_goals_of_tracing_are_the_median_pair_and_the_median_rate() -> None:
    of_tracing = goals(pairs_of_tracing())[3:]
    assert [(round(g.value or 0, 3), g.met) for g in of_tracing] == [(1.05, True), (11_000, True)]


def test_a_run_that_was_given_up_makes_no_pair() -> None:
    runs = [traced(UNSAMPLED, 0, 0.1), replace(traced(SAMPLED, 0, 0.1), finished=False)]
    assert goals(runs)[3].met is None


def test_the_pair_of_tracing_is_ours_so_it_must_be_exactly_once() -> None:
    lost = replace(traced(SAMPLED, 0, 0.1), verdict=replace(CLEAN, lost=1))
    assert not sound([lost], [])


def test_a_run_is_sound_only_if_handoff_was_exactly_once_each_time() -> None:
    double = replace(CLEAN, repeated_steps=1)
    assert sound([measured("handoff"), measured("faust", verdict=double)], [])
    assert not sound([measured("handoff"), measured("handoff", 1, verdict=double)], [])
    assert not sound([measured("handoff", finished=False)], [])


def test_a_run_with_a_failure_is_not_sound() -> None:
    assert not sound([measured("handoff")], [(Workload.IO, "faust", 0, "it died")])
