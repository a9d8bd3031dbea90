"""The command line answers at once, refuses in one line and exits with codes that mean something."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from physis_stream.bench import report
from physis_stream.cli import COMMANDS, main


def physis(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "physis_stream.cli", *arguments], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"physis-stream {command}" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("physis-stream ")


def test_help_imports_no_torch():
    code = "import sys; from physis_stream.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    seen = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules, file=sys.stderr)"], capture_output=True, text=True
    )
    assert seen.stderr.strip() == "False"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        (),
        ("bench",),
        ("bench", "nonsense"),
        ("models", "show"),
        ("serve", "--port", "eighty"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert left.value.code == 2
    assert capsys.readouterr().err


def test_an_unknown_world_is_named_and_the_known_ones_are_listed(capsys):
    assert main(["models", "show", "atlantis"]) == 2
    said = capsys.readouterr().err
    assert "atlantis" in said
    assert "pusht" in said
    assert "Traceback" not in said


def test_models_list_and_show_agree(capsys):
    assert main(["models", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["models", "show", listed[0]["name"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed[0]


def test_a_missing_folder_for_json_is_refused_before_the_work(tmp_path, capsys):
    assert main(["bench", "world", "--quick", "--json", str(tmp_path / "nowhere" / "out.json")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_refusal_leaves_no_traceback():
    refused = physis("models", "show", "atlantis")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_a_report_writes_all_keys_and_the_same_values(tmp_path):
    result = {"ratio": 3.25, "psnr": {"1": 30.0, "60": 25.5}, "machine": {"cpu": "x"}}
    printed = "\n".join(report.lines(result))
    assert "psnr.60" in printed
    assert "25.5" in printed
    report.write_json(result, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert list(tmp_path.iterdir()) == [tmp_path / "out.json"]
