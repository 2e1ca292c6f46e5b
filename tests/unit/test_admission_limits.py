"""The bounds of admission: defaults, what does not fit together, and the way from the settings to a model."""

from __future__ import annotations

from typing import Any

import pytest

from service.admission.limits import AdmissionLimits, default_reserved
from service.catalog.file import ModelsFileError, parse_models
from service.composition import declared_models, open_models
from service.config import ServiceSettings
from service.core.errors import Reason, ServiceError
from service.core.request import Priority


@pytest.mark.parametrize(
    ("running", "reserved"), [(1, 0), (2, 0), (3, 0), (4, 1), (8, 1), (15, 1), (16, 2), (64, 8), (4096, 512)]
)
def test_an_eighth_is_reserved_but_none_of_few_slots(running: int, reserved: int) -> None:
    assert default_reserved(running) == reserved
    AdmissionLimits(running=running, reserved=reserved)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="running") as refused:
        AdmissionLimits(running=0, reserved=-1, waiting=-1, waiting_batch=-2, batch_turn=1)
    for part in ("running must", "reserved must", "waiting must", "waiting_batch must", "batch_turn must"):
        assert part in str(refused.value)
    with pytest.raises(ValueError, match="reserved must be less than the 2 slots"):
        AdmissionLimits(running=2, reserved=2)


def test_a_class_has_its_own_bounds() -> None:
    limits = AdmissionLimits(running=8, reserved=3, waiting=5, waiting_batch=6)
    assert [limits.running_of(priority) for priority in (Priority.INTERACTIVE, Priority.BATCH)] == [8, 5]
    assert [limits.waiting_of(priority) for priority in (Priority.INTERACTIVE, Priority.BATCH)] == [5, 6]


async def opened(**settings: Any) -> AdmissionLimits:
    registry = await open_models(declared_models(ServiceSettings(**{"backend": "simulator", **settings})))
    return registry.get("default").slots.limits


async def test_settings_reach_the_model() -> None:
    assert await opened(
        max_running=12,
        max_waiting=1,
        max_waiting_batch=2,
        reserved_slots=3,
        batch_turn=4,
        refuse_hopeless_deadlines=False,
    ) == AdmissionLimits(running=12, reserved=3, waiting=1, waiting_batch=2, batch_turn=4, refuses_hopeless=False)


async def test_what_is_not_set_has_its_default() -> None:
    assert await opened(simulator_max_running=16) == AdmissionLimits(
        running=16, reserved=2, waiting=256, waiting_batch=256, batch_turn=8, refuses_hopeless=True
    )


async def test_max_running_goes_before_the_simulators_own_number() -> None:
    assert (await opened(simulator_max_running=16, max_running=3)).running == 3


async def test_a_models_file_reaches_the_model() -> None:
    (declaration,) = parse_models(
        "[[models]]\nid='m'\nbackend='simulator'\nmax_running=9\nmax_waiting=0\nmax_waiting_batch=7\n"
        "reserved_slots=8\nbatch_turn=2\nrefuse_hopeless_deadlines=false\n",
        "m.toml",
    )
    model = (await open_models([declaration])).get("m")
    assert model.slots.limits == AdmissionLimits(
        running=9, reserved=8, waiting=0, waiting_batch=7, batch_turn=2, refuses_hopeless=False
    )


async def test_reserved_slots_are_checked_again_when_the_engine_has_told_how_many_there_are() -> None:
    (declaration,) = parse_models("[[models]]\nid='m'\nbackend='simulator'\nreserved_slots=99\n", "m.toml")
    with pytest.raises(ServiceError, match=r"model 'm': reserved_slots must be less than the 16 slots") as refused:
        await open_models([declaration])
    assert refused.value.reason is Reason.INVALID_FIELD


@pytest.mark.parametrize(
    ("rest", "running"),
    [
        ("backend = 'simulator'\nmax_running = 4", 4),
        ("backend = 'llamacpp'", 4),
        ("backend = 'llamacpp'\noptions.slots = 2", 2),
        ("backend = 'llamacpp'\nmax_running = 1\noptions.slots = 9", 1),
    ],
)
def test_a_models_file_that_reserves_all_slots_is_refused_on_its_line(rest: str, running: int) -> None:
    text = f"[[models]]\nid = 'm'\nreserved_slots = {running}\n{rest}\n"
    with pytest.raises(ModelsFileError) as refused:
        parse_models(text, "m.toml")
    (problem,) = refused.value.problems
    assert problem.startswith("m.toml:3: models[0].reserved_slots: must be less than the")
    assert f"the {running} slots" in problem
    parse_models(text.replace(f"reserved_slots = {running}", f"reserved_slots = {running - 1}"), "m.toml")


def test_every_bound_of_a_models_file_is_named_with_its_line() -> None:
    with pytest.raises(ModelsFileError) as refused:
        parse_models(
            "[[models]]\nid='m'\nbackend='simulator'\nmax_running=2\nmax_waiting=-1\nmax_waiting_batch=-1\n"
            "reserved_slots=2\nbatch_turn=1\nrefuse_hopeless_deadlines='maybe'\n",
            "m.toml",
        )
    assert [problem.split(": ")[1] for problem in refused.value.problems] == [
        f"models[0].{name}"
        for name in ("max_waiting", "max_waiting_batch", "reserved_slots", "batch_turn", "refuse_hopeless_deadlines")
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "simulator", "simulator_max_running": 4, "reserved_slots": 4},
        {"backend": "triton", "max_running": 4, "reserved_slots": 5},
        {"backend": "llamacpp", "slots": 4, "reserved_slots": 4},
    ],
)
def test_settings_that_reserve_all_slots_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--reserved-slots must be less than the 4 slots"):
        ServiceSettings(**settings)
