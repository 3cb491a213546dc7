"""The benchmark measures what it says: one problem for all, wrong results marked, absence no failure."""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.serialization import from_plain, to_plain
from vqshield_paper.speed import (
    Bench,
    BenchRecord,
    BenchSettings,
    implementations,
    list_implementations,
    list_workloads,
    read_record,
    run,
    timing,
    workloads,
)
from vqshield_paper.speed.implementations import Implementation, implementation
from vqshield_paper.speed.quality import inertia, kmeans_check, rounds
from vqshield_paper.speed.record import AgreementRecord, ContractsRecord, MemoryRow, SampledRecord, Skipped
from vqshield_paper.speed.workloads import Problem, Workload, pictures, streams
from vqshield_paper.speed.yardsticks import measure_classifier, measure_peak

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
TINY = Workload(name="tiny", side=10, size=2, codes=3, cpu_batch=3)
OTHERS = timing.LoadWatch.others


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload that takes milliseconds, on a machine that does nothing else."""
    monkeypatch.setitem(workloads._WORKLOADS, "tiny", TINY)
    monkeypatch.setattr(timing.LoadWatch, "others", lambda _: 0.0)


def measured(*names: str, **settings: object) -> BenchRecord:
    """A record of the tiny workload, as it would be read back from a file."""
    chosen = {"device": "cpu", "workloads": ("tiny",), "threads": (1,), "budget": 0.0, "extras": False}
    bench = Bench(BenchSettings(implementations=names, **{**chosen, **settings}), lambda _: None)
    bench.run()
    record = bench.record()
    text = json.dumps(to_plain(record), allow_nan=False)
    assert from_plain(BenchRecord, json.loads(text), "test") == record
    return record


def lazy_kmeans(problem: Problem, threads: int) -> implementations.Call:
    """Never moves a centre."""
    return lambda: problem.start


def lazy_defense(workload: Workload, images: Tensor, settings: str) -> implementations.Call:
    """Shields nothing."""
    return lambda: images.clone()


PLANTED = Implementation(name="planted", kmeans=lazy_kmeans, defense=lazy_defense, defense_settings=("ten",))


def plant(monkeypatch: pytest.MonkeyPatch, planted: Implementation = PLANTED) -> None:
    monkeypatch.setitem(implementations._IMPLEMENTATIONS, "planted", planted)


class TestProblem:
    def test_pictures_are_natural_images_of_the_workloads_shape(self) -> None:
        for name in list_workloads():
            workload = workloads.workload(name)
            images = pictures(workload, 2, CPU)
            assert images.shape == (2, workload.channels, workload.side, workload.side)
            assert 0 <= images.min() < images.max() <= 1
            assert images.std() > 0.05

    def test_a_batch_beyond_the_sample_starts_again(self) -> None:
        images = pictures(TINY, 501, CPU)
        assert torch.equal(images[500], images[0])
        assert not torch.equal(images[1], images[0])

    def test_patches_are_those_that_the_defense_clusters(self) -> None:
        # With as many centres as patches, every noisy patch is a centre: the codebook shows them.
        workload = Workload(name="all", side=6, size=2, codes=25)
        shield = workload.shield("ten", backend="torch")
        images = pictures(workload, 2, CPU)
        problem = Problem.make(workload, images)
        codebook = shield.codebook(images, streams=streams(2, CPU))
        for patches, centres in zip(problem.patches, codebook, strict=True):
            assert torch.equal(patches[patches[:, 0].argsort()], centres[centres[:, 0].argsort()])

    def test_the_start_is_patches_at_distinct_places(self) -> None:
        problem = Problem.make(TINY, pictures(TINY, 2, CPU))
        for patches, start in zip(problem.patches, problem.start, strict=True):
            places = (patches[None] == start[:, None]).all(2).nonzero()[:, 1]
            assert len(set(places.tolist())) == TINY.codes

    def test_rounds_counts_iterations_that_change_labels(self) -> None:
        settled = torch.tensor([[[0.0], [0.1], [1.0]]])
        assert rounds(Problem(settled, settled[:, [0, 2]])) == 1
        # Centres at 0 and 1; the second moves to 5.25, gives 1 away, moves to 6.67, gives nothing.
        moving = torch.tensor([[[0.0], [1.0], [3.0], [7.0], [10.0]]])
        assert rounds(Problem(moving, moving[:, :2])) == 3


class TestImplementations:
    @pytest.mark.parametrize("name", [name for name in list_implementations() if name != "torch-compile"])
    def test_every_one_here_gives_the_reference_result(self, name: str) -> None:
        if (problem := implementation(name).missing(CPU)) is not None:
            pytest.skip(problem)
        record = measured(name)
        assert record.skipped == ()
        assert record.rows[0].step == "kmeans"
        for row in record.rows:
            if row.step == "kmeans":
                assert row.inertia_ratio == pytest.approx(1, abs=1e-3)
            else:
                assert row.distortion_ratio == pytest.approx(1, abs=0.3)

    def test_the_compiled_one_compiles_the_plain_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = []
        monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
        rows = measured("torch-compile").rows
        assert [row.step for row in rows] == ["kmeans", "defense"]
        assert len(compiled) == 1 + 3  # an iteration; begin, iteration and end

    @pytest.mark.parametrize("defense", ["swrd", "prd"])
    def test_plain_defense_shields_like_ours(self, defense: str, monkeypatch: pytest.MonkeyPatch) -> None:
        workload = Workload(name="tiny", defense=defense, side=16, size=2, codes=8, cpu_batch=16)
        monkeypatch.setitem(workloads._WORKLOADS, "tiny", workload)
        row = measured("torch-eager").rows[-1]
        assert (row.step, row.note) == ("defense", "")

    def test_a_wrong_result_is_marked_and_not_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plant(monkeypatch)
        kmeans, defense = measured("planted").rows
        assert kmeans.inertia_ratio > 1.001
        assert "inertia differs" in kmeans.note
        assert defense.distortion_ratio == 0
        assert "distortion differs" in defense.note

    def test_not_a_number_is_marked(self) -> None:
        problem = Problem.make(TINY, pictures(TINY, 2, CPU))
        check = kmeans_check(problem)
        assert check.ratio(problem.start * float("nan")) is None
        assert check.note(None, ours=False) != ""
        assert check.note(1.0005, ours=False) == ""

    def test_inertia_by_hand(self) -> None:
        patches = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]])
        assert inertia(patches, torch.tensor([[[0.0, 0.0], [0.0, 2.0]]])) == pytest.approx(0 + 1 + 1)

    def test_a_missing_library_is_reported_and_no_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn", None)
        record = measured("scikit-learn", "torch-eager")
        (entry,) = record.skipped
        assert entry.name == "scikit-learn"
        assert "not installed" in entry.reason
        assert {row.implementation for row in record.rows} == {"torch-eager"}

    def test_a_failing_library_costs_its_own_rows_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(problem: Problem, threads: int) -> implementations.Call:
            raise OSError("cannot open '/some/where/library.so'")

        plant(monkeypatch, replace(PLANTED, kmeans=failing))
        record = measured("planted", "vqshield-torch")
        assert record.skipped == (
            Skipped(name="tiny kmeans planted", reason="failed: OSError: cannot open 'library.so'"),
        )
        assert len([row for row in record.rows if row.implementation == "vqshield-torch"]) == 3


class TestRecord:
    def test_rows_and_machine(self) -> None:
        reported: list[str] = []
        settings = BenchSettings(
            device="cpu", workloads=("tiny",), implementations=("vqshield-torch",), budget=0.0, extras=False
        )
        bench = Bench(settings, reported.append)
        bench.run()
        record = bench.record()
        assert len(reported) == bench.count + 1
        assert reported[-1] == ""
        assert record.complete is True
        assert record.machine.torch == torch.__version__
        assert record.workloads["tiny"].count == 81
        keys = [(row.threads, row.step, row.settings) for row in record.rows]
        expected = [("kmeans", "ten"), ("defense", "ten"), ("defense", "default")]
        counts = sorted({1, torch.get_num_threads()})
        assert sorted(keys) == sorted((count, *each) for count in counts for each in expected)
        for row in record.rows:
            assert row.images_per_second > 0
            assert (row.batch, row.device) == (3, "cpu")

    def test_of_several_batches_or_passes_the_best_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Workload, "batches", lambda *_: (1, 2, 3))
        rows = measured("vqshield-torch", "torch-eager", passes=2).rows
        assert len(rows) == 3 + 2
        assert len({(row.implementation, row.step, row.settings) for row in rows}) == len(rows)

    def test_nothing_begins_after_the_deadline(self) -> None:
        record = measured("vqshield-torch", deadline=0.0)
        assert record.rows == ()
        assert {entry.reason for entry in record.skipped} == {run.OUT_OF_TIME}
        assert record.complete is False

    def test_quick_is_a_selection(self) -> None:
        quick, full = BenchSettings(quick=True, device="cpu"), BenchSettings(device="cpu")
        assert set(quick.chosen_workloads) < set(full.chosen_workloads)
        assert set(quick.chosen_implementations) < set(full.chosen_implementations)
        assert quick.chosen_budget < full.chosen_budget
        assert quick.chosen_deadline < 60

    def test_the_extras(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "SHIELDED", TINY)
        monkeypatch.setattr(run, "measure_peak", partial(measure_peak, scale=8))
        small = {"threads": 1, "budget": 0.0, "compiled": False, "batch": 2}
        monkeypatch.setattr(
            run, "measure_classifier", lambda device, **_: measure_classifier(device, **small)
        )
        record = measured("vqshield-torch", extras=True)
        assert record.skipped == ()
        (machine,), (forward,) = record.peak, record.classifier
        for value in (machine.gflops["float32"], machine.copy_gbytes, machine.normals):
            assert value > 0
        assert forward.images_per_second == max(forward.forms.values())
        ratios = {ratio.settings: ratio.share_of_forward for ratio in record.classifier_ratios}
        rates = {row.settings: row.images_per_second for row in record.rows if row.step == "defense"}
        assert ratios == {name: forward.images_per_second / rate for name, rate in rates.items()}
        for row in record.rows:  # of ten iterations those that change anything count, by default all twenty
            iterations = record.workloads[TINY.name].rounds if row.settings == "ten" else 20
            done = row.images_per_second * TINY.flops(row.step, iterations) / 1e9
            assert row.share_of_peak == pytest.approx(done / machine.gflops["float32"])


SHAPES = {
    "speed": BenchRecord,
    "agreement": AgreementRecord,
    "contracts": ContractsRecord,
    "sampled": SampledRecord,
}


class TestFiles:
    @pytest.mark.parametrize(
        "path",
        [
            path
            for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))
            if path.stem.split("-")[0] in SHAPES  # the others are records of their own programs
        ],
        ids=lambda p: p.stem,
    )
    def test_kept_records_are_read_and_written_alike(self, path: Path) -> None:
        record = read_record(SHAPES[path.stem.split("-")[0]], path)
        assert json.dumps(to_plain(record), indent=1) + "\n" == path.read_text()

    def test_what_is_wrong_in_a_file_is_named(self, tmp_path: Path) -> None:
        record = to_plain(measured("torch-eager"))
        record["rows"][1]["threads"] = "two"
        (tmp_path / "bench.json").write_text(json.dumps(record))
        with pytest.raises(FileFormatError, match=r"bench\.json\.rows\[1\]\.threads is 'two'"):
            read_record(BenchRecord, tmp_path / "bench.json")


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "known"),
        [
            ({"workloads": ("nope",)}, "cifar-swrd-3-25"),
            ({"implementations": ("nope",)}, "vqshield-native"),
            ({"device": "tpu"}, "auto, cpu, cuda"),
            ({"threads": (0,)}, "from 1 to"),
            ({"threads": ((os.cpu_count() or 1) + 1,)}, "from 1 to"),
            ({"budget": -1.0}, ">= 0"),
            ({"passes": 0}, ">= 1"),
        ],
    )
    def test_nonsense_is_answered_with_what_is_valid(self, setting: dict, known: str) -> None:
        with pytest.raises(InvalidInputError, match=known):
            BenchSettings(**setting)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_gpu_that_is_not_there(self) -> None:
        with pytest.raises(InvalidInputError, match="cuda"):
            BenchSettings(device="cuda")
        assert BenchSettings(device="auto").place == CPU


class TestWorkloads:
    def test_operations_by_hand(self) -> None:
        n, k, d = 81, 3, 12
        assert TINY.flops("kmeans") == 10 * (2 * n * k * d + n * d)
        assert TINY.flops("defense") == TINY.flops("kmeans") + 2 * n * k * d


class TestTiming:
    def test_calls_are_warmed_up_and_repeated(self) -> None:
        calls: list[int] = []
        result, found = timing.measure(
            lambda: calls.append(1) or len(calls), device=CPU, budget=0.0, warmups=2, least=4
        )
        assert (result, len(calls), len(found.seconds)) == (6, 6, 4)
        assert found.best <= found.median

    def test_threads_are_limited_and_given_back(self) -> None:
        before = torch.get_num_threads()
        with timing.limited_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before

    def test_the_load_of_others(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        stat = tmp_path / "stat"
        monkeypatch.setattr(timing, "_STAT", stat)
        monkeypatch.setattr(timing.LoadWatch, "others", OTHERS)
        assert timing.LoadWatch().others() is None
        stat.write_text("cpu 0 0 0 5 5 0 0 0 0 0\n")
        watch = timing.LoadWatch()
        assert watch.others() == 0
        stat.write_text("cpu 900000 0 0 5 5 0 0 0 0 0\n")
        assert watch.others() > timing.BUSY

    def test_a_figure_of_a_busy_machine_is_marked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timing.LoadWatch, "others", lambda _: 0.5)
        assert "other programs used 50%" in measured("torch-eager").rows[0].note


class TestTables:
    """paper/tools/speed_tables.py writes what the record says."""

    @pytest.fixture
    def tables(self):
        import speed_tables

        return speed_tables

    def test_every_table_of_a_record(self, tables, monkeypatch: pytest.MonkeyPatch) -> None:
        plant(monkeypatch)
        record = measured("vqshield-torch", "torch-eager", "planted", "flash-kmeans")
        rates = {"vqshield-torch": 5000.0, "torch-eager": 2000.0, "planted": 1000.0}
        rows = [replace(row, images_per_second=rates[row.implementation]) for row in record.rows]
        record = replace(record, rows=tuple(rows))
        monkeypatch.setattr(tables, "read", lambda _: record)
        text = {name.removeprefix("speed-cpu-"): make() for name, make in tables.SPEED_TABLES.items()}
        assert "| **vqshield-torch** | 5,000 |" in text["kmeans"]
        assert "| planted | 1,000 † |" in text["kmeans"]
        assert "inertia differs" in text["kmeans"]
        assert "torch-eager" not in text["default"]
        assert "| vqshield-torch 5,000 | torch-eager 2,000 | 2.5 | 2.5 |" in text["advantage"]
        assert "flash-kmeans (runs on cuda alone)" in text["machine"]
        assert "| tiny | 3 x 10 x 10 | swrd s=2 | 81 | 12 | 3 | 3 |" in text["rounds"]

    def test_without_a_record_the_page_says_so(self, tables, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "read", lambda _: None)
        assert all("Not measured yet" in make() for make in tables.SPEED_TABLES.values())

    def test_every_place_on_the_pages_has_its_table(self, tables) -> None:
        from growth_tables import GROWTH_TABLES
        from sampled_tables import SAMPLED_TABLES
        from stage_table import STAGE_TABLES
        from surrogate_tables import SURROGATE_TABLES

        page = "".join((ROOT / "docs" / name).read_text() for name in ("speed.md", "speed-tables.md"))
        names = {part.split(" ")[0] for part in page.split("<!-- begin ")[1:]}
        others = (GROWTH_TABLES, SAMPLED_TABLES, STAGE_TABLES, SURROGATE_TABLES)
        known = {*tables.SPEED_TABLES}.union(*others)
        assert names - {"agreement"} <= known
        assert len(names) > 15


class TestScript:
    """benchmarks/speed.py"""

    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
        import speed

        return speed

    def test_what_was_skipped_is_added_later(self, script) -> None:
        late = [Skipped(name=name, reason=run.OUT_OF_TIME) for name in ("memory native", "resnet18")]
        kept = replace(measured("torch-eager"), skipped=tuple(late), complete=False)
        row = MemoryRow(
            workload="tiny", implementation="torch-eager", images=1, input_bytes=1, output_bytes=1,
            workspace_bytes=1, peak_bytes=1,
        )  # fmt: skip
        more = replace(kept, rows=(), memory=(row,), skipped=tuple(late[1:]), complete=True)
        partly = script.added(kept, more, "memory")
        assert (partly.rows, partly.memory) == (kept.rows, (row,))
        assert (partly.skipped, partly.complete) == (tuple(late[1:]), False)
        assert script.added(partly, replace(more, skipped=()), "resnet18").complete
        assert not script.added(partly, replace(more, skipped=(), complete=False), "resnet18").complete

    def test_rows_of_more_implementations_are_added(self, script) -> None:
        kept, more = measured("vqshield-torch"), measured("vqshield-torch", "torch-eager")
        more = replace(more, machine=kept.machine)
        both = script.added(kept, more, "tiny")
        assert {row.key for row in both.rows} == {row.key for row in more.rows}
        assert len(both.rows) == len(more.rows) > len(kept.rows)
        assert list(both.implementations) == ["vqshield-torch", "torch-eager"]
        assert both.complete

    def test_records_of_two_machines_are_not_mixed(self, script) -> None:
        record = measured("torch-eager")
        other = replace(record, machine=replace(record.machine, processor="another"))
        with pytest.raises(SystemExit, match="another machine"):
            script.added(record, other, "memory")
