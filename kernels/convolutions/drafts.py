"""Steps of a program before and after all its images have their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphopt.kernels.convolutions.arena import Buffer, Place, first_fit
from graphopt.kernels.convolutions.steps import Kind, Step, View


@dataclass(frozen=True)
class Draft:
    """A step whose places are not known yet."""

    step: Step
    into: Place | None = None
    source: Place | None = None
    other: Place | None = None
    scratch: Buffer | None = None


def pack(drafts: Sequence[Draft], count: int) -> int:
    """Give every buffer of ``count`` images its place; returns the floats of the arena."""
    buffers: dict[int, Buffer] = {}
    for number, draft in enumerate(drafts):
        used: Sequence[Place | None] = (draft.into, draft.source, draft.other)
        found = [place.buffer for place in used if place is not None]
        for buffer in (*found, *([draft.scratch] if draft.scratch else [])):
            buffers[id(buffer)] = buffer
            buffer.touch(number)
    return first_fit(list(buffers.values()), count)


def finished(draft: Draft, count: int, lanes: int) -> Step:
    """The step with its places; over one long row where that makes no difference."""
    step = draft.step
    into = draft.into.view() if draft.into else View()
    source = draft.source.view() if draft.source else View()
    other = draft.other.view() if draft.other else None
    scratch = draft.scratch.at if draft.scratch else 0
    if step.kind is Kind.DIRECT and draft.into and draft.into.buffer.rows:
        # Rows are the pixels of one image.
        across = replace(step.window, stride=(1, source.image_stride // lanes))
        into, other = into.as_pixels(count), other and other.as_pixels(count)
        return replace(step, images=1, window=across, into=into, source=source, other=other)
    given = [view for view in (into, source, other) if view is not None]
    pointwise = step.kind is Kind.COMBINE or (
        step.kind in (Kind.DIRECT, Kind.DEPTHWISE) and step.window.is_pointwise
    )
    if pointwise and not step.is_planar and all(view.is_dense for view in given):
        into, source = into.as_row(), source.as_row()
        other = other.as_row() if other else None
    return replace(step, into=into, source=source, other=other, scratch=scratch)
