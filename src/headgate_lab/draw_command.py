"""The command that draws what is left of a network."""

from __future__ import annotations

import copy
import io
from argparse import ArgumentParser, Namespace

from headgate_lab.commands import CommandError, planned

FORMATS = (".png", ".svg", ".pdf")


def draw(parser: ArgumentParser, options: Namespace) -> int:
    """Prints the channels that every layer of a saved small model has left, and draws them."""
    from headgate_lab.files import why_not_writable, write_whole

    to = options.to
    if to.suffix.lower() not in FORMATS:
        parser.error(f"--to {to}: its name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if (obstacle := why_not_writable(to)) is not None:
        parser.error(f"--to {to}: {obstacle}")
    full, plan = planned(parser, options)

    import headgate as hg
    from headgate_lab.outlining import outline
    from headgate_lab.report.figures.architecture import portrait

    try:
        small = hg.load(options.file, lambda: copy.deepcopy(full))
    except hg.HeadgateError as error:
        raise CommandError(str(error)) from error
    found = outline(plan, full, small)
    left, before = (sum(parameter.numel() for parameter in model.parameters()) for model in (small, full))
    title = f"{type(full).__name__}: {left:,} of {before:,} parameters"
    image = io.BytesIO()
    portrait(found, title).savefig(image, format=to.suffix[1:].lower(), dpi=150)
    write_whole(to, image.getvalue())
    print(f"{title}\n{found}\npicture: {to.resolve()}")
    return 0
