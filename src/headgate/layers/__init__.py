"""The few layers of our own that a compacted model may contain, under the same parameter names as before.

A residual branch that was narrowed still adds into a wider stream. Its last layer then becomes a `WriteBack` layer:
the same layer with fewer outputs, which writes them into their places and zeros everywhere else. A branch that reads
only some channels of its stream begins with a `Gather` layer: the same layer with fewer inputs, which picks them. A
gate that was placed by hand becomes a `Scale`, which multiplies the channels that are left by what its mask was. A
branch that writes nothing at all ends in `Zeros`, and so does whatever only fed it. torch's own attention with fewer
heads is a `FewerHeads`, and torch's own recurrent module whose layers or directions differ in size an `Uneven` one.
"""

from headgate.layers.attention import (
    FewerHeads,
    can_lose_heads,
    heads_left,
    lose_heads_,
    without_fast_paths,
)
from headgate.layers.gather import (
    Gather,
    GatherBatchNorm1d,
    GatherBatchNorm2d,
    GatherBatchNorm3d,
    GatherConv1d,
    GatherConv2d,
    GatherConv3d,
    GatherLinear,
    can_gather,
    gather_,
)
from headgate.layers.mixed import (
    channel_axis,
    mixed_class,
)
from headgate.layers.recurrent import (
    UNEVEN,
    Uneven,
    UnevenGRU,
    UnevenLSTM,
    UnevenRNN,
    fit_recurrent_,
)
from headgate.layers.scale import (
    Scale,
)
from headgate.layers.write_back import (
    WriteBack,
    WriteBackBatchNorm1d,
    WriteBackBatchNorm2d,
    WriteBackBatchNorm3d,
    WriteBackConv1d,
    WriteBackConv2d,
    WriteBackConv3d,
    WriteBackInstanceNorm1d,
    WriteBackInstanceNorm2d,
    WriteBackInstanceNorm3d,
    WriteBackLinear,
    can_write_back,
    write_back_,
    written_back,
)
from headgate.layers.zeros import (
    Window,
    Zeros,
    can_be_empty,
    empty_,
    outputs_of,
)

__all__ = [
    "UNEVEN",
    "FewerHeads",
    "Gather",
    "GatherBatchNorm1d",
    "GatherBatchNorm2d",
    "GatherBatchNorm3d",
    "GatherConv1d",
    "GatherConv2d",
    "GatherConv3d",
    "GatherLinear",
    "Scale",
    "Uneven",
    "UnevenGRU",
    "UnevenLSTM",
    "UnevenRNN",
    "Window",
    "WriteBack",
    "WriteBackBatchNorm1d",
    "WriteBackBatchNorm2d",
    "WriteBackBatchNorm3d",
    "WriteBackConv1d",
    "WriteBackConv2d",
    "WriteBackConv3d",
    "WriteBackInstanceNorm1d",
    "WriteBackInstanceNorm2d",
    "WriteBackInstanceNorm3d",
    "WriteBackLinear",
    "Zeros",
    "can_be_empty",
    "can_gather",
    "can_lose_heads",
    "can_write_back",
    "channel_axis",
    "empty_",
    "fit_recurrent_",
    "gather_",
    "heads_left",
    "lose_heads_",
    "mixed_class",
    "outputs_of",
    "without_fast_paths",
    "write_back_",
    "written_back",
]
