"""The summary that `dragoman prepare` prints."""

from dragoman.corpus.clean import FILTERS
from dragoman.corpus.manifest import Manifest

_MEGABYTE = 1e6


def summarize(manifest: Manifest) -> str:
    """Say what was kept, what was dropped and why, and how large everything is."""
    lines = [f"{manifest.pairs.raw:>14,}  pairs read"]
    lines += [
        f"{-removed:>14,}  {FILTERS[name].words} ({name})"
        for name, removed in manifest.filters.items()
        if removed
    ]
    lines.append(f"{manifest.pairs.prepared:>14,}  pairs prepared")
    lines.append("")
    lines.append(f"{'':12}{'raw MB':>12}{'cleaned MB':>12}{'prepared MB':>12}{'tokens':>16}")
    for side, language in manifest.languages.items():
        sizes = manifest.bytes[side]
        megabytes = "".join(
            f"{size / _MEGABYTE:>12,.1f}" for size in (sizes.raw, sizes.cleaned, sizes.prepared)
        )
        lines.append(f"{f'{side} ({language})':12}{megabytes}{manifest.tokens[side]:>16,}")
    lines.append("")
    sizes_text = " + ".join(f"{size:,}" for size in manifest.vocabulary.sizes)
    lines.append(f"vocabulary: {sizes_text} subwords")
    for kind, named in manifest.sets.items():
        lines += [f"{kind} set {name}: {counts.pairs:,} pairs" for name, counts in named.items()]
    return "\n".join(lines)
