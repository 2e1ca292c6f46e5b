"""The `llm` command line (llm.datasette.io), set up as its own pages say for servers that speak OpenAI's API.

Once as a process, which takes seconds to start; else by its own test entry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from llm.cli import cli

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Ability, Served, scripted, written
from tests.support.processes import clean_environment

GREEDY = ("-o", "temperature", "0", "-o", "seed", "7")
COUNTING = (*GREEDY, "-o", "max_tokens", str(ANSWER_TOKENS))
Llm = Callable[..., Result]


def set_up(folder: Path, served: Served) -> None:
    """Write the file that names the gateway."""
    common: dict[str, Any] = {"model_name": MODEL, "api_base": served.url}
    models: list[dict[str, Any]] = [
        {"model_id": "chat", "supports_schema": True},
        {"model_id": "text", "completion": True},
        {"model_id": "responses", "responses": True},
        {"model_id": "tools", "model_name": TOOLS_MODEL, "supports_tools": True},
    ]
    (folder / "extra-openai-models.yaml").write_text(yaml.safe_dump([{**common, **model} for model in models]))


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Llm:
    """Runs `llm` towards a backend."""

    def run(served: Served, *arguments: str, code: int = 0) -> Result:
        set_up(tmp_path, served)
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
        done = CliRunner().invoke(cli, list(arguments))
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done

    return run


def test_a_question_at_the_terminal_is_answered(simulated: Served, tmp_path: Path) -> None:
    set_up(tmp_path, simulated)
    command = [str(Path(sys.executable).with_name("llm")), "-m", "chat", *COUNTING, simulated.prompt]
    environment = clean_environment(LLM_USER_PATH=str(tmp_path))
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ANSWER}\n", "")


def test_streamed_and_whole_the_answer_is_the_same_with_its_usage(served: Served, llm: Llm) -> None:
    question = served.count[-1]["content"]
    streamed = llm(served, "-m", "chat", *COUNTING, "--usage", question)
    # A real model, which has seen no example here, may say something else.
    assert streamed.stdout == f"{ANSWER}\n" if served.can(Ability.SCRIPT) else streamed.stdout.strip()
    assert f"{ANSWER_TOKENS} output" in streamed.stderr
    whole = llm(served, "-m", "chat", *COUNTING, "--no-stream", question)
    assert whole.stdout == streamed.stdout


def test_completions_and_responses_say_what_chat_says(simulated: Served, llm: Llm) -> None:
    assert llm(simulated, "-m", "text", *COUNTING, simulated.prompt).stdout == f"{ANSWER}\n"
    assert llm(simulated, "-m", "responses", "-o", "max_tokens", "16", simulated.prompt).stdout.startswith(ANSWER)


def test_a_tool_is_called_with_what_the_model_wrote(simulated: Served, llm: Llm) -> None:
    prompt = written('<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>')
    tool = 'def get_weather(city: str) -> str:\n    "The weather of a city."\n    return f"Sunny in {city}."\n'
    # The script calls it again whatever comes back, so that the second turn is the last one.
    done = llm(simulated, "-m", "tools", "--functions", tool, "--td", "--cl", "2", prompt, code=1)
    assert done.stderr.count("Sunny in Zürich.") == 1
    assert "Chain limit of 2 exceeded" in done.stderr


def test_a_schema_gives_json_or_the_server_s_own_refusal(served: Served, llm: Llm) -> None:
    asked = ("-m", "chat", *GREEDY, "-o", "max_tokens", "40", "--schema", "is_large bool", "Describe Paris.")
    if served.can(Ability.CONSTRAINT):
        assert isinstance(json.loads(llm(served, *asked).stdout)["is_large"], bool)
    else:
        assert "response_format" in llm(served, *asked, code=1).stderr


def test_a_failure_within_a_stream_is_shown_behind_the_text(simulated: Served, llm: Llm) -> None:
    done = llm(simulated, "-m", "chat", scripted("a", "b", "c", fault="error", fault_after=2), code=1)
    assert done.stdout.startswith("ab")
    assert "The engine failed" in done.stderr
