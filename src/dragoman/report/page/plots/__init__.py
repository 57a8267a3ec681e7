"""All pictures of a report, each beside the answer it belongs to."""

from collections.abc import Callable, Mapping

from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.page.plots.canvas import Picture
from dragoman.report.page.plots.learning_plots import (
    bleu_picture,
    gap_picture,
    gradient_norm_picture,
    learning_rate_picture,
    loss_picture,
)
from dragoman.report.page.plots.machine_plots import (
    correlation_picture,
    network_picture,
    step_time_picture,
    utilization_picture,
)
from dragoman.report.page.plots.prediction_plots import bandwidth_picture, workers_picture
from dragoman.report.page.plots.size_plots import cleaning_picture, time_split_picture

_PICTURES: Mapping[str, tuple[Callable[[Evidence, Findings], Picture | None], ...]] = {
    "duration": (time_split_picture,),
    "fully_trained": (loss_picture, bleu_picture),
    "overfitting": (gap_picture,),
    "gpu_utilization": (utilization_picture,),
    "network_bottleneck": (network_picture,),
    "learning_rate": (learning_rate_picture, gradient_norm_picture),
    "training_set": (cleaning_picture,),
    "step_time": (step_time_picture,),
    "step_time_vs_network": (correlation_picture,),
    "whatif": (bandwidth_picture, workers_picture),
}


def pictures_of(evidence: Evidence, findings: Findings) -> dict[str, list[Picture]]:
    """The pictures that the evidence allows, by the id of their answer."""
    return {
        answer: [picture for make in makers if (picture := make(evidence, findings))]
        for answer, makers in _PICTURES.items()
    }
