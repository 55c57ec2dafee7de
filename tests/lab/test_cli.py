"""The command refuses what it cannot do before it trains, and ends cleanly whatever happens to it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
import tomllib
from matplotlib.image import imread

import headgate
from headgate_lab.cli import LAB_PACKAGES, main
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.recipes import catalog
from headgate_lab.recipes.catalog import EXPERIMENTS
from headgate_lab.recipes.experiment import Experiment
from tests.lab.engine.straight_line import StraightLine
from tests.lab.report.synthetic import LINEAR_5, write, write_autoencoder, write_dimension, write_lenet

# A training of a minute or more, one line at once.
LONG = ["run", "dimension", "--only", "linear, r = 5, paper", "--seeds", "1", "--device", "cpu", "--commit", "c"]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The arguments that run a small experiment."""
    experiment = Experiment("line", "a line", "nowhere", 2, lambda: [StraightLine(2.0), StraightLine(3.0)])
    monkeypatch.setitem(EXPERIMENTS, "line", experiment)
    return ["run", "line", "--device", "cpu", "--commit", "c", "--out", str(tmp_path / "out")]


def test_an_experiment_is_run_once_and_listed(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line, "--only", "slope 2"]) == 0
    assert {record["seed"] for record in read_runs(tmp_path / "out", "line")} == {0, 1}
    assert main(line) == 0
    assert "2 of 4 runs are finished already" in capsys.readouterr().out
    assert len(read_runs(tmp_path / "out", "line")) == 4
    assert main(["list", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "4/4" in printed and "dimension" in printed


def test_a_setting_named_in_full_is_run_alone(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = Experiment("line", "a line", "nowhere", 1, lambda: [StraightLine(2.0), StraightLine(2.5)])
    monkeypatch.setitem(EXPERIMENTS, "line", twice)
    assert main([*line, "--only", "slope 2"]) == 0
    assert [record["setting"] for record in read_runs(tmp_path / "out", "line")] == ["slope 2"]
    assert main([*line, "--only", "slope 2."]) == 0
    assert len(read_runs(tmp_path / "out", "line")) == 2


def test_several_settings_may_be_named(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slopes = (2.0, 3.0, 4.0, 4.5)
    experiment = Experiment("line", "a line", "nowhere", 1, lambda: [StraightLine(slope) for slope in slopes])
    monkeypatch.setitem(EXPERIMENTS, "line", experiment)
    assert main([*line, "--only", "slope 4", "--only", "2", "--only", "slope 2"]) == 0
    assert {record["setting"] for record in read_runs(tmp_path / "out", "line")} == {"slope 2", "slope 4"}


def test_a_run_that_is_out_of_time_says_what_is_left(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Experiment("line", "a line", "nowhere", 2, lambda: [StraightLine(2.0, pause=0.2)], together=1)
    monkeypatch.setitem(EXPERIMENTS, "line", slow)
    assert main([*line, "--minutes", "0.005"]) == 75
    assert "out of time with 2 of 2 runs left: the same command goes on" in capsys.readouterr().out
    assert main([*line, "--minutes", "1"]) == 0
    assert len(read_runs(tmp_path / "out", "line")) == 2


def test_a_run_needs_no_rich(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(line) == 0
    assert "epoch 5/5" in capsys.readouterr().out
    assert len(read_runs(tmp_path / "out", "line")) == 4


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nothing"], "nothing is no experiment"),
        (["dimension", "--seeds", "0"], "--seeds must be from 1 to 10000, not 0"),
        (["dimension", "--seeds", "99999999999999999999"], "--seeds must be from 1 to 10000"),
        (["dimension", "--together", "-1"], "--together"),
        (["dimension", "--minutes", "0"], "--minutes must be more than 0, not 0"),
        (["dimension", "--minutes", "nan"], "--minutes must be more than 0, not nan"),
        (["dimension", "--only", "cubic"], "--only cubic fits no setting"),
        (["lenet", "--only", "cubic"], "paper strength 0.2; … ("),
        (["dimension", "--only", "linear", "--only", "cubic"], "--only cubic fits no setting"),
        (["dimension", "--device", "tpu"], "tpu"),
        (["dimension", "--out", "file"], "--out file is not a folder"),
        (["dimension", "--colour"], "--colour"),
    ],
)
def test_wrong_arguments_are_one_line_before_any_training(
    arguments: list[str],
    culprit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("headgate_lab.engine.run.run", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert culprit in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)  # root could write even where the mode forbids it
    with pytest.raises(SystemExit) as ended:
        main([*LONG, "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert f"cannot write in {tmp_path}: Permission denied" in capsys.readouterr().err


def test_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = entry_points(group="console_scripts", name="headgate")
    assert script.load() is main
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"headgate {headgate.__version__}\n"
    assert headgate.__version__ == version("headgate")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def _python(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_packages_it_can_name_are_those_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported = {"scikit-learn": "sklearn", "pillow": "PIL"}
    extra = {imported.get(name, name) for name in project["optional-dependencies"]["lab"]}
    assert extra == LAB_PACKAGES


@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_without_the_lab_extra_it_says_what_to_install(package: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from headgate_lab.cli import main; sys.exit(main(['demo']))"
    )
    process = _python(program, tmp_path)
    printed, complaint = process.communicate(timeout=600)
    assert process.returncode == 1
    assert printed == ""
    assert complaint.count("\n") == 1
    assert package in complaint
    assert "pip install 'headgate[lab]'" in complaint


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    # The handler is set by hand: a test runner started in the background hands down an ignored SIGINT.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from headgate_lab.cli import main; sys.exit(main({LONG}))"
    )
    process = _python(program, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("dimension (linear, r = 5, paper), seed 0: begins, 100 epochs")
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=600)
    assert process.returncode == 130
    assert complaint == "headgate: interrupted\n"
    assert read_runs(tmp_path / "results", "dimension") == []


def test_a_reader_that_leaves_ends_it_in_one_line(tmp_path: Path) -> None:
    process = _python(f"import sys; from headgate_lab.cli import main; sys.exit(main({LONG}))", tmp_path)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "headgate: nobody reads the output any more\n"
    assert process.wait(timeout=600) == 141
    process.stderr.close()


@pytest.mark.parametrize("arguments", ["--version", "list"])
def test_a_closed_output_ends_it_in_one_line(arguments: str, tmp_path: Path) -> None:
    shell = f"exec {sys.executable} -m headgate_lab.cli {arguments} >&-"
    done = subprocess.run(shell, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "headgate: standard output is closed\n")


@pytest.mark.parametrize("arguments", ["--version", "list"])
def test_an_output_that_cannot_be_written_ends_it_in_one_line(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "output").touch()
    # Unbuffered, argparse itself passes over what it cannot write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(tmp_path / "output", "rb") as only_for_reading:  # stands for a full disk
        command = [sys.executable, "-m", "headgate_lab.cli", arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=only_for_reading,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "headgate: [Errno 9] Bad file descriptor\n")


def test_a_record_that_cannot_be_written_ends_it_in_one_line(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(line) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("headgate: [Errno 28] No space left on device: ") and complaint.count("\n") == 1
    assert read_runs(tmp_path / "out", "line") == []


def test_a_table_is_plain_text_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lenet(tmp_path)
    assert main(["table", "lenet", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "LeNet-5 on MNIST (Appendix E.1, tab:mnist_dam_lenet); network lenet5"
    assert ["tanh", "0", "paper", "0.1", "3.9k", "4.0k", "±", "0.1k", "93.59", "93.52", "±", "0.00"] in (
        line.split()[:12] for line in lines
    )
    assert lines[1] == "Besides, where there are runs: width 0.25 (narrower)."
    assert sum("narrower" in line.split() for line in lines) == 1
    assert lines[-1] == "10 runs of 2 seeds; device two cores; torch 2.13.0; commit 0123456789"


def test_a_table_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dimension(tmp_path)
    assert main(["table", "dimension", "--json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {
        "id": "dimension", "setting": {"problem": "linear", "factors": 5, "settings": "paper"}, "metric": "dimension",
        "statistic": "mean", "place": "Fig. 3 (a)", "paper": 5.0, "paper_sd": None, "ours": 5.5,
        "sd": pytest.approx(0.5**0.5), "n": 2,
    }  # fmt: skip
    assert len(rows) == 18


def test_a_table_without_records_has_the_paper_and_says_what_makes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "EXPERIMENTS", {"lenet": None})
    monkeypatch.chdir(tmp_path)
    assert main(["table", "lenet"]) == 0
    printed = capsys.readouterr().out
    assert " 90.12 " in printed
    assert printed.splitlines()[-1] == "no records of lenet in results yet: headgate run lenet"
    assert main(["table", "cifar", "--out", "elsewhere"]) == 0
    assert "no records of cifar in elsewhere yet, and no recipe that makes them" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_figure_is_drawn_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_autoencoder(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "autoencoder", "--out", "runs"]) == 0
    assert capsys.readouterr().out == f"figure: {tmp_path / 'headgate-figure-autoencoder.png'}\n"
    assert main(["figure", "autoencoder", "--out", "runs", "--to", "x.png"]) == 0
    assert imread(tmp_path / "x.png").shape[2] == 4


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["table", "lenett"], "lenett is no experiment of the paper; they are: dimension, sensitivity, "),
        (["table"], "ID"),
        (["figure", "lenett"], "lenett is no experiment of the paper"),
        (["figure", "recommender"], "recommender has no figure; see headgate table recommender"),
        (["figure", "lenet", "--to", "missing/x.png"], "missing does not exist"),
        (["figure", "lenet", "--to", "x.jpg"], "must end in .png"),
        (["figure", "lenet", "--to", "."], "is a folder"),
    ],
)
def test_wrong_arguments_of_reports_are_one_line(
    arguments: list[str],
    culprit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert culprit in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_records_that_say_nothing_end_reports_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*arguments: str) -> str:
        assert main([*arguments, "--out", "runs"]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        return printed.err

    monkeypatch.setattr(catalog, "EXPERIMENTS", {"lenet": None})
    monkeypatch.chdir(tmp_path)
    assert complaint("figure", "lenet") == "headgate: no records of lenet in runs yet: headgate run lenet --out runs\n"
    assert "and no recipe that makes them" in complaint("figure", "curves")
    write(tmp_path / "runs", "lenet", {"network": "lenet5"}, 0, {})
    assert complaint("figure", "lenet") == "headgate: the records of lenet lack accuracy, pruned and params\n"
    for strength in (0.1, 0.2):
        write(tmp_path / "runs", "dimension", {**LINEAR_5, "strength": strength}, 0, {"dimension": 5})
    assert "2 recipes: strength=0.1; strength=0.2" in complaint("table", "dimension")
    (tmp_path / "runs" / "cifar" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "cifar" / "x" / "record.json").write_text("[]")
    assert "record.json holds no object" in complaint("table", "cifar", "--json")
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


@pytest.mark.parametrize("command", [["list"], ["table", "dimension"], ["figure", "dimension"], ["run", "dimension"]])
def test_an_out_that_is_a_file_is_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    try:
        status = main([*command, "--out", "file"])
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    assert status in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "--out file is not a folder" in printed.err


def test_a_damaged_record_ends_the_list_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(catalog.EXPERIMENTS["dimension"].recipes()[0], 0)
    job.folder(tmp_path).mkdir(parents=True)
    (job.folder(tmp_path) / "record.json").write_text("{")
    assert main(["list", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert (
        printed.out == ""
        and printed.err.count("\n") == 1
        and "record.json cannot be read" in printed.err
        and "remove it" in printed.err
    )


def test_a_table_without_rows_is_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "ablation", "--out", str(tmp_path)]) == 0
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["Where", "no"]


def test_numbers_are_whole_in_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["table", "lenet", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed and " 90.12 " in printed


def test_records_of_an_installed_headgate_name_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headgate_lab.records.checkout_commit", lambda: None)
    monkeypatch.setattr("headgate_lab.engine.run.run", lambda jobs, place, *_, **__: print(place.environment["commit"]))
    with pytest.raises(TypeError):  # the run that stands in for the real one returns no failures
        main(["run", "dimension", "--out", str(tmp_path), "--device", "cpu"])
    notice, commit = capsys.readouterr().out.splitlines()
    assert notice.startswith("this is no git checkout: records will name headgate ") and commit in notice
