"""The workloads' plots, small PNG files."""

from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

FILES: Final = MappingProxyType(
    {
        "workloads-first-token.png": "Time to first token of every request, by variant",
        "workloads-speedup.png": "Speedup over the engine without a store, beside the ideal",
        "workloads-chat.png": "Time to first token over the length of a chat's prompt",
    }
)
COLOURS: Final = MappingProxyType(
    {"without": "#8c8c8c", "store": "#1f77b4", "two workers": "#2ca02c", "ideal": "#ff7f0e"}
)
SIZE: Final = (7.5, 3.2)


def draw(document: dict[str, Any], folder: Path) -> None:
    """Draws all plots into a folder, and makes it if needed."""
    # Imported here, because the import takes a second and only plots need it.
    from matplotlib.figure import Figure  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    workloads = document["workloads"]
    for name, paint in zip(FILES, (_first_token, _speedup, _chat), strict=True):
        figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
        axes = figure.subplots()
        paint(axes, workloads, document)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(FILES[name], fontsize=9, loc="left")
        figure.savefig(folder / name, metadata={"Software": None})


def _first_token(axes: Any, workloads: dict[str, Any], document: dict[str, Any]) -> None:  # noqa: ANN401
    del document
    step, labels = 1.0, []
    for place, (name, each) in enumerate(workloads.items()):
        times = each["raw"]["ttft_ms"]
        width = step / (len(times) + 1)
        labels.append(name)
        for number, (variant, samples) in enumerate(times.items()):
            position = place * step + (number - (len(times) - 1) / 2) * width
            boxes = axes.boxplot(
                samples,
                positions=[position],
                widths=width * 0.8,
                whis=(0, 100),
                patch_artist=True,
                medianprops={"color": "black"},
            )
            boxes["boxes"][0].set(facecolor=COLOURS[variant], label="_" * bool(place) + variant)
    axes.set_yscale("log")
    axes.set_xticks([place * step for place in range(len(labels))], labels)
    axes.set_ylabel("ms (box: quartiles, whiskers: all)", fontsize=8)
    axes.legend(fontsize=7, ncols=4)


def _speedup(axes: Any, workloads: dict[str, Any], document: dict[str, Any]) -> None:  # noqa: ANN401
    heads = [document["summary"][name] for name in workloads]
    bars = {"store": [head["speedup"] for head in heads]}
    if all("two_workers" in head for head in heads):
        bars["two workers"] = [head["two_workers"]["speedup"] for head in heads]
    bars["ideal"] = [head["ideal_speedup"] for head in heads]
    for number, (variant, heights) in enumerate(bars.items()):
        positions = [place + (number - 1) * 0.27 for place in range(len(heights))]
        axes.bar(positions, heights, 0.25, color=COLOURS[variant], label=variant)
    targets = [each["target"]["speedup"] for each in workloads.values()]
    for place, target in enumerate(targets):
        axes.hlines(
            target,
            place - 0.42,
            place + 0.42,
            "black",
            "dashed",
            label="_" * bool(place) + "target",
        )
    axes.set_xticks(range(len(workloads)), list(workloads))
    axes.set_ylabel("speedup", fontsize=8)
    axes.margins(y=0.2)
    axes.legend(fontsize=7, ncols=4)


def _chat(axes: Any, workloads: dict[str, Any], document: dict[str, Any]) -> None:  # noqa: ANN401
    del document
    raw = workloads.get("chat", {"raw": {"ttft_ms": {}}})["raw"]
    for variant, samples in raw["ttft_ms"].items():
        axes.scatter(raw["prompt_tokens"], samples, 12, COLOURS[variant], label=variant, alpha=0.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of the prompt", fontsize=8)
    axes.set_ylabel("ms", fontsize=8)
    axes.legend(fontsize=7)
