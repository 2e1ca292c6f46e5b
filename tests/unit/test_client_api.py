"""What the package exports, and its channel defaults."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

import headrace
from headrace._channel import DEFAULT_OPTIONS, TlsConfig, host_and_port


def test_the_exported_names_are_these_and_sorted() -> None:
    assert headrace.__all__ == [
        "Answer",
        "AsyncClient",
        "Client",
        "Generation",
        "GenerationStream",
        "HeadraceError",
        "RequestFields",
        "TlsConfig",
        "__version__",
        "cancel_generation",
        "errors",
        "generate_text",
        "get_generation",
    ]
    assert all(hasattr(headrace, name) for name in headrace.__all__)
    assert headrace.errors.__all__ == sorted(headrace.errors.__all__, key=lambda name: (name.islower(), name))


def test_the_version_is_that_of_the_package() -> None:
    assert headrace.__version__ == importlib.metadata.version("headrace")


def test_importing_the_client_needs_neither_the_cli_extra_nor_an_sdk() -> None:
    check = (
        "import sys, headrace; print({'click', 'rich', 'opentelemetry.sdk', 'service', 'gateway'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"


def test_the_stubs_load_without_the_client() -> None:
    check = "import sys; from headrace.v1 import generation_pb2; print({'grpc', 'headrace._aio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"


def test_a_missing_extra_is_one_clear_line() -> None:
    program = "import sys; sys.modules['rich'] = None; from headrace.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "headrace: rich is missing; the command line needs: pip install 'headrace[cli]'",
    ]


def test_only_what_a_server_did_not_look_at_is_retried_and_nothing_times_out_by_service_config() -> None:
    config = json.loads(str(DEFAULT_OPTIONS["grpc.service_config"]))
    (method,) = config["methodConfig"]
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE", "CANCELLED"]
    assert method["retryPolicy"]["maxAttempts"] == 3
    assert "timeout" not in method


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("dns:///llm.internal:443", ("llm.internal", 443)),
        ("dns://8.8.8.8/llm.internal:443", ("llm.internal", 443)),
        ("llm.internal", ("llm.internal", None)),
        ("[::1]:50051", ("::1", 50051)),
        ("ipv6:[::1]:50051", ("::1", 50051)),
        ("ipv4:10.0.0.1:443", ("10.0.0.1", 443)),
        ("dns:llm.internal:443", ("llm.internal", 443)),
        ("::1", ("::1", None)),
        ("unix:/run/headrace.sock", ("/run/headrace.sock", None)),
        ("unix:///run/headrace.sock", ("/run/headrace.sock", None)),
    ],
)
def test_a_target_is_split_for_telemetry(target: str, expected: tuple[str, int | None]) -> None:
    assert host_and_port(target) == expected


def test_a_client_certificate_needs_both_halves() -> None:
    with pytest.raises(ValueError, match="both certificate_chain and private_key"):
        TlsConfig(certificate_chain=b"pem")
