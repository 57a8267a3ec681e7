"""How long a step will take with each sync setting, and which to choose."""

from collections.abc import Mapping

from dragoman.check.facts import Findings
from dragoman.config import Config, DistributedSettings
from dragoman.prediction.step_model import (
    ALONE,
    MeasuredRun,
    Prediction,
    Scenario,
    before_training,
    predict,
)
from dragoman.prediction.sync_choice import (
    GRADIENTS,
    SyncChoice,
    choose_local_steps,
    choose_sync,
    choose_way,
    in_words,
    is_slower,
)
from dragoman.thresholds import SMALL_NETWORK_SHARE
from dragoman.wording import in_percent


def calibration_of(findings: Findings, config: Config) -> MeasuredRun:
    """The findings as a prediction needs them."""
    is_balanced = config.distributed.balance
    machines = len(findings.machines)
    return before_training(findings.step, machines, findings.links, is_balanced=is_balanced)


def predictions(findings: Findings, config: Config) -> dict[str, Prediction]:
    """One worker alone, and all of them with the usual sync settings and as configured."""
    calibration = calibration_of(findings, config)
    scenarios = {"one worker alone": ALONE}
    if len(findings.hosts) > 1:
        configured = configured_way(config.distributed, calibration)
        ways = (*GRADIENTS, choose_local_steps(calibration), configured)
        scenarios |= {name_of(way): way for way in ways}
    return {
        name: predict(calibration, scenario, name, config.training.steps)
        for name, scenario in scenarios.items()
    }


def configured_way(settings: DistributedSettings, calibration: MeasuredRun) -> Scenario:
    """How the workers are to synchronize."""
    if settings.sync == "auto":
        return choose_sync(calibration).way
    is_local = settings.sync == "local"
    return Scenario(
        compression=settings.compression,
        local_steps=settings.local_steps if is_local else 1,
        local_fragments=settings.local_fragments if is_local else 1,
        local_delay=settings.local_delay,
    )


def automatic_choice(findings: Findings, config: Config) -> SyncChoice | None:
    """What sync = "auto" comes to here, and why; None if something else is configured."""
    if config.distributed.sync != "auto":
        return None
    return choose_sync(calibration_of(findings, config))


def name_of(way: Scenario) -> str:
    """What the prediction for it is called."""
    return f"all, {in_words(way)}"


def recommend(
    predicted: Mapping[str, Prediction], configured: str, *, could_balance: bool = False
) -> str:
    """What to set, and why; `configured` names the prediction for what is set now."""
    if len(predicted) == 1:
        return "one worker: no network is used; add --workers or --hosts to check more"
    alone, plain, half, local, *_ = predicted.values()
    own = predicted[configured]
    if own.machines == 1:
        return "all workers are on one machine: no network is used"
    best = choose_way((plain, half, local), alone)
    if _gives_up(own) == _gives_up(best) and own.network_share <= max(
        SMALL_NETWORK_SHARE.value, best.network_share
    ):
        best = own
        advice = (
            f"keep what is configured: the network takes {in_percent(own.network_share)} of a step"
        )
    elif best is local:
        advice = (
            f"set distributed.sync = 'auto', which chooses '{local.label}' here: gradients would "
            f"spend {in_percent(plain.network_share)} of every step on the network, in bf16 "
            f"{in_percent(half.network_share)}, this {in_percent(local.network_share)}; or make "
            "the batch larger"
        )
    else:
        together = " and sync = 'gradients'" if own.local_steps > 1 else ""
        advice = (
            f"set distributed.compression = '{best.compression}'{together}: the network would "
            f"take {in_percent(best.network_share)} of a step, without compression "
            f"{in_percent(plain.network_share)}"
        )
    return advice + _against_alone(predicted, best, could_balance=could_balance)


def _against_alone(
    predicted: Mapping[str, Prediction], best: Prediction, *, could_balance: bool
) -> str:
    """All sync settings that are slower than one worker alone, the best one last."""
    alone, *ways = predicted.values()
    slow = [one for one in ways if is_slower(one.seconds_step, alone.seconds_step)]
    words = ""
    if names := [f"'{one.label}'" for one in slow if one is not best]:
        words = f". With {' or '.join(names)} the run would be slower than one worker alone"
    if best in slow:
        words += ". Even so one worker alone would be faster: train on one machine"
        words += ", or set distributed.balance = true" if could_balance else ""
    return words


def _gives_up(one: Prediction) -> int:
    """What a sync setting costs beside time: nothing, bits of the gradients, steps in common."""
    return 2 if one.local_steps > 1 else int(one.compression != "none")
