"""Second names: older spellings, front-end spellings and the ``_sparse_`` ones.

MXNet resolves them when it loads a Symbol, so they are met in JSON files but not in loaded graphs.
"""

from __future__ import annotations

#: ``name=alias,alias``, one word per operator.
_ALIASES = """
    Activation=_npx_activation add_n=ElementWiseSum,_sparse_ElementWiseSum argsort=_npi_argsort
    batch_dot=_npx_batch_dot BatchNorm=_npx_batch_norm
    BlockGrad=_sparse_stop_gradient,stop_gradient
    broadcast_add=_sparse_broadcast_plus,broadcast_plus broadcast_axis=broadcast_axes
    broadcast_maximum=_npi_maximum broadcast_minimum=_npi_minimum
    broadcast_sub=_sparse_broadcast_minus,broadcast_minus Cast=_npi_cast,_npx_cast,cast
    clip=_npi_clip Concat=_sparse_concat,concat _contrib_arange_like=_npx_arange_like
    _contrib_boolean_mask=_npi_boolean_mask _contrib_box_nms=_contrib_box_non_maximum_suppression
    _contrib_MultiBoxDetection=_npx_multibox_detection _contrib_MultiBoxPrior=_npx_multibox_prior
    _contrib_MultiBoxTarget=_npx_multibox_target Convolution=_npx_convolution _copy=identity
    _copyto=_npi_copyto CTCLoss=_contrib_CTCLoss,_contrib_ctc_loss,ctc_loss Custom=_npi_Custom
    _cvimdecode=_npi_cvimdecode _cvimread=_npi_cvimread _cvimresize=_npi_cvimresize
    Deconvolution=_npx_deconvolution _div_scalar=_DivScalar Dropout=_npx_dropout
    elemwise_add=_Plus,_add,_plus elemwise_div=_Div,_div elemwise_mul=_Mul,_mul
    elemwise_sub=_Minus,_minus,_sub Embedding=_npx_embedding _equal=_Equal
    _equal_scalar=_EqualScalar erf=_npx_erf erfinv=_npx_erfinv expand_dims=_npi_expand_dims
    Flatten=_npx_batch_flatten,flatten _full=_npi_full FullyConnected=_npx_fully_connected
    gamma=_npx_gamma gammaln=_npx_gammaln gather_nd=_npi_gather_nd,_npx_gather_nd
    _greater=_Greater _greater_equal=_Greater_Equal _greater_equal_scalar=_GreaterEqualScalar
    _greater_scalar=_GreaterScalar _histogram=_npi_histogram _hypot=_Hypot
    _hypot_scalar=_HypotScalar,_npi_hypot_scalar
    _image_adjust_lighting=_npx__image_adjust_lighting _image_crop=_npx__image_crop
    _image_flip_left_right=_npx__image_flip_left_right
    _image_flip_top_bottom=_npx__image_flip_top_bottom _image_normalize=_npx__image_normalize
    _image_random_brightness=_npx__image_random_brightness
    _image_random_color_jitter=_npx__image_random_color_jitter
    _image_random_contrast=_npx__image_random_contrast
    _image_random_flip_left_right=_npx__image_random_flip_left_right
    _image_random_flip_top_bottom=_npx__image_random_flip_top_bottom
    _image_random_hue=_npx__image_random_hue _image_random_lighting=_npx__image_random_lighting
    _image_random_saturation=_npx__image_random_saturation _image_resize=_npx__image_resize
    _image_to_tensor=_npx__image_to_tensor LayerNorm=_npx_layer_norm LeakyReLU=_npx_leaky_relu
    _lesser=_Lesser _lesser_equal=_Lesser_Equal _lesser_equal_scalar=_LesserEqualScalar
    _lesser_scalar=_LesserScalar _linalg_det=_npi_det,linalg_det
    _linalg_extractdiag=linalg_extractdiag _linalg_extracttrian=linalg_extracttrian
    _linalg_gelqf=linalg_gelqf _linalg_gemm=linalg_gemm _linalg_gemm2=linalg_gemm2
    _linalg_inverse=_npi_inv,linalg_inverse _linalg_makediag=linalg_makediag
    _linalg_maketrian=linalg_maketrian _linalg_potrf=linalg_potrf _linalg_potri=linalg_potri
    _linalg_slogdet=_npi_slogdet,linalg_slogdet _linalg_sumlogdiag=linalg_sumlogdiag
    _linalg_syrk=linalg_syrk _linalg_trmm=linalg_trmm _linalg_trsm=linalg_trsm
    _linspace=_npi_linspace log_softmax=_npx_log_softmax _logical_and=_Logical_And
    _logical_and_scalar=_LogicalAndScalar _logical_or=_Logical_Or
    _logical_or_scalar=_LogicalOrScalar _logical_xor=_Logical_Xor
    _logical_xor_scalar=_LogicalXorScalar max=max_axis _maximum=_Maximum
    _maximum_scalar=_MaximumScalar,_npi_maximum_scalar min=min_axis _minimum=_Minimum
    _minimum_scalar=_MinimumScalar,_npi_minimum_scalar _minus_scalar=_MinusScalar _mod=_Mod
    _mod_scalar=_ModScalar _mul_scalar=_MulScalar _not_equal=_Not_Equal
    _not_equal_scalar=_NotEqualScalar _np_any=_np_sometrue _np_cumsum=cumsum _np_max=_np_amax
    _np_min=_np_amin _np_prod=_np_product _npi_absolute=_npi_abs _npx_nonzero=_npi_nonzero
    _npx_reshape=_npi_reshape one_hot=_npx_one_hot Pad=pad pick=_npx_pick,choose_element_0index
    _plus_scalar=_PlusScalar Pooling=_npx_pooling _power=_Power _power_scalar=_PowerScalar
    _random_exponential=random_exponential _random_gamma=random_gamma
    _random_generalized_negative_binomial=random_generalized_negative_binomial
    _random_negative_binomial=random_negative_binomial _random_normal=normal,random_normal
    _random_pdf_dirichlet=random_pdf_dirichlet _random_pdf_exponential=random_pdf_exponential
    _random_pdf_gamma=random_pdf_gamma
    _random_pdf_generalized_negative_binomial=random_pdf_generalized_negative_binomial
    _random_pdf_negative_binomial=random_pdf_negative_binomial
    _random_pdf_normal=random_pdf_normal _random_pdf_poisson=random_pdf_poisson
    _random_pdf_uniform=random_pdf_uniform _random_poisson=random_poisson
    _random_randint=_npi_random_randint,random_randint _random_uniform=random_uniform,uniform
    _ravel_multi_index=ravel_multi_index _rdiv_scalar=_RDivScalar repeat=_np_repeat
    Reshape=reshape reshape_like=_npx_reshape_like reverse=flip _rminus_scalar=_RMinusScalar
    _rmod_scalar=_RModScalar RNN=_npx_rnn _rnn_param_concat=_npi_rnn_param_concat
    ROIPooling=_npx_roi_pooling _rpower_scalar=_RPowerScalar
    _sample_exponential=sample_exponential _sample_gamma=sample_gamma
    _sample_generalized_negative_binomial=sample_generalized_negative_binomial
    _sample_multinomial=sample_multinomial _sample_negative_binomial=sample_negative_binomial
    _sample_normal=sample_normal _sample_poisson=sample_poisson _sample_uniform=sample_uniform
    _scatter_set_nd=_npi_scatter_set_nd SequenceMask=_npx_sequence_mask
    shape_array=_npx_shape_array _shuffle=_npi_shuffle,shuffle slice=_npi_slice,_npx_slice,crop
    _slice_assign=_crop_assign,_npi_slice_assign
    _slice_assign_scalar=_crop_assign_scalar,_npi_slice_assign_scalar SliceChannel=split
    smooth_l1=_npx_smooth_l1 softmax=_npx_softmax SoftmaxOutput=Softmax sort=_npi_sort
    _split_v2=_npi_split sum=sum_axis SwapAxis=_npi_swapaxes,swapaxes take=_npi_take
    tile=_npi_tile topk=_npx_topk _unravel_index=unravel_index
"""

#: Operators whose second name is ``_sparse_`` and their own.
_SPARSE = """
    Embedding FullyConnected LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
    _contrib_round_ste _contrib_sign_ste abs adam_update add_n arccos arccosh arcsin arcsinh
    arctan arctanh broadcast_add broadcast_div broadcast_mul broadcast_sub cast_storage cbrt ceil
    clip cos cosh degrees dot elemwise_add elemwise_div elemwise_mul elemwise_sub exp expm1 fix
    floor ftrl_update gamma gammaln log log10 log1p log2 make_loss mean negative norm radians relu
    rint round rsqrt sgd_mom_update sgd_update sigmoid sign sin sinh slice sqrt square sum tan
    tanh trunc where zeros_like
"""


def read_aliases() -> dict[str, tuple[str, ...]]:
    """Aliases by canonical name."""
    found: dict[str, tuple[str, ...]] = {}
    for name in _SPARSE.split():
        found[name] = (f"_sparse_{name}",)
    for word in _ALIASES.split():
        name, _, aliases = word.partition("=")
        found[name] = (*found.get(name, ()), *aliases.split(","))
    return found
