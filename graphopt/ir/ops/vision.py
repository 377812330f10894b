"""Detection, sampling grids and image transformations."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_SAMPLE = OpInfo("", Kind.ANCHOR, pure=True)
_DETECT = OpInfo("", Kind.OPAQUE, pure=True, gradient=Gradient.NONE)
_IMAGE = OpInfo("", Kind.INJECTIVE, pure=True, gradient=Gradient.NEITHER, arguments=("data",))

SAMPLING = (
    *family("BilinearSampler", _SAMPLE, arguments=("data", "grid")),
    *family("GridGenerator", _SAMPLE, arguments=("data",)),
    *family("SpatialTransformer", _SAMPLE, arguments=("data", "loc")),
    *family("Correlation", _SAMPLE, arguments=("data1", "data2")),
    *family("ROIPooling", _SAMPLE, arguments=("data", "rois")),
    *family(
        "_contrib_PSROIPooling _contrib_ROIAlign",
        _SAMPLE,
        gradient=Gradient.INPUTS,
        arguments=("data", "rois"),
    ),
    *family("_contrib_RROIAlign", _SAMPLE, gradient=Gradient.NONE, arguments=("data", "rois")),
    *family("_contrib_DeformablePSROIPooling", _SAMPLE, arguments=("data", "rois", "trans")),
)

DETECTION = (
    *family("_contrib_MultiBoxPrior", _DETECT, gradient=Gradient.BOTH, arguments=("data",)),
    *family("_contrib_MultiBoxTarget", _DETECT, arguments=("anchor", "label", "cls_pred")),
    *family(
        "_contrib_MultiBoxDetection",
        _DETECT,
        gradient=Gradient.BOTH,
        arguments=("cls_prob", "loc_pred", "anchor"),
    ),
    *family(
        "_contrib_Proposal _contrib_MultiProposal",
        _DETECT,
        arguments=("cls_prob", "bbox_pred", "im_info"),
    ),
    *family("_contrib_box_nms", _DETECT, gradient=Gradient.OUTPUTS, arguments=("data",)),
    *family("_contrib_box_iou", _DETECT, gradient=Gradient.NEITHER, arguments=("lhs", "rhs")),
    *family("_contrib_box_decode", _DETECT, arguments=("data", "anchors")),
    *family(
        "_contrib_box_encode",
        _DETECT,
        arguments=("samples", "matches", "anchors", "refs", "means", "stds"),
    ),
    *family("_contrib_bipartite_matching", _DETECT, gradient=Gradient.NEITHER, arguments=("data",)),
)

IMAGES = (
    *family(
        """_image_adjust_lighting _image_crop _image_flip_left_right _image_flip_top_bottom
        _image_to_tensor""",
        _IMAGE,
    ),
    *family("_image_normalize", _IMAGE, gradient=Gradient.INPUTS),
    *family("_image_resize", _IMAGE, kind=Kind.ANCHOR),
    *family(
        """_image_random_brightness _image_random_color_jitter _image_random_contrast
        _image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue
        _image_random_lighting _image_random_saturation""",
        _IMAGE,
        kind=Kind.OPAQUE,
        pure=False,
        random=True,
    ),
)

TRANSFORMS = family(
    "_contrib_fft _contrib_ifft",
    _SAMPLE,
    gradient=Gradient.INPUTS,
    arguments=("data",),
)

OPERATORS = (*SAMPLING, *DETECTION, *IMAGES, *TRANSFORMS)
