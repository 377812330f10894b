"""Operators that no pass may move, merge or drop: known by name, opaque on purpose.

They differ from unknown operators only in what they are said to write.
"""

from __future__ import annotations

from graphopt.ir.ops.facts import UNKNOWN, Gradient, family

# An update without a state is impure as well: it is called with its weight as output.
UPDATES = (
    *family("sgd_update signsgd_update", gradient=Gradient.NONE, arguments=("weight", "grad")),
    *family("lamb_update_phase2", gradient=Gradient.NONE, arguments=("weight", "g", "r1", "r2")),
    *family(
        "sgd_mom_update nag_mom_update signum_update",
        mutates=(2,),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mom"),
    ),
    *family(
        "mp_sgd_update",
        mutates=(2,),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "weight32"),
    ),
    *family(
        "mp_sgd_mom_update mp_nag_mom_update",
        mutates=(2, 3),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mom", "weight32"),
    ),
    *family(
        "adam_update lamb_update_phase1",
        mutates=(2, 3),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mean", "var"),
    ),
    *family(
        "mp_lamb_update_phase1",
        mutates=(2, 3),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mean", "var", "weight32"),
    ),
    *family(
        "mp_lamb_update_phase2",
        mutates=(4,),
        gradient=Gradient.NONE,
        arguments=("weight", "g", "r1", "r2", "weight32"),
    ),
    *family(
        "_adamw_update",
        mutates=(2, 3),
        hidden_writes=(1,),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mean", "var", "rescale_grad"),
    ),
    *family(
        "_mp_adamw_update",
        mutates=(2, 3, 4),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "mean", "var", "weight32", "rescale_grad"),
    ),
    *family(
        "ftml_update",
        mutates=(2, 3, 4),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "d", "v", "z"),
    ),
    *family(
        "ftrl_update",
        mutates=(2, 3),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "z", "n"),
    ),
    *family(
        "rmsprop_update", mutates=(2,), gradient=Gradient.NONE, arguments=("weight", "grad", "n")
    ),
    *family(
        "rmspropalex_update",
        mutates=(2, 3, 4),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "n", "g", "delta"),
    ),
    *family(
        "_sparse_adagrad_update _contrib_group_adagrad_update",
        mutates=(2,),
        gradient=Gradient.NONE,
        arguments=("weight", "grad", "history"),
    ),
)

# One call for many weights: the inputs come in groups, one group per weight.
MULTI_UPDATES = (
    *family("multi_sgd_update preloaded_multi_sgd_update", gradient=Gradient.NONE),
    *family(
        """multi_sgd_mom_update preloaded_multi_sgd_mom_update multi_mp_sgd_update
        preloaded_multi_mp_sgd_update""",
        mutates=(2,),
        period=3,
        gradient=Gradient.NONE,
    ),
    *family(
        """multi_mp_sgd_mom_update preloaded_multi_mp_sgd_mom_update _multi_lamb_update
        _multi_adamw_update""",
        mutates=(2, 3),
        period=4,
        gradient=Gradient.NONE,
    ),
    *family(
        "_multi_mp_lamb_update _multi_mp_adamw_update",
        mutates=(2, 3, 4),
        period=5,
        gradient=Gradient.NONE,
    ),
    *family("reset_arrays", mutates=(0,), period=1, gradient=Gradient.NONE),
    # With init_output=False they add to what the output held before.
    *family("all_finite multi_all_finite", gradient=Gradient.NONE),
)

# User code, subgraphs that may contain anything, and the executor's own nodes.
CALLS = family(
    """Custom _CachedOp _CachedOpThreadSafe _CustomFunction _NDArray _Native _cond _foreach
    _while_loop""",
    mode_dependent=True,
)
PLUMBING = (
    *family("_CrossDeviceCopy _copyto", arguments=("data",)),
    *family("_NoGradient _set_value", gradient=Gradient.NONE),
    *family("_onehot_encode", gradient=Gradient.NONE, arguments=("lhs", "rhs")),
    *family("fill_element_0index", gradient=Gradient.NONE, arguments=("lhs", "mhs", "rhs")),
    *family("_npx_constraint_check", gradient=Gradient.NONE, arguments=("input",)),
    *family("_npi_share_memory", gradient=Gradient.NONE, arguments=("a", "b")),
)

# Where indices repeat, the last writer wins, and threads do not agree on who is last.
SCATTERS = (
    *family("scatter_nd", gradient=Gradient.INPUTS, arguments=("data", "indices")),
    *family("_scatter_set_nd", gradient=Gradient.NONE, arguments=("lhs", "rhs", "indices")),
    *family(
        "_contrib_index_copy",
        gradient=Gradient.INPUTS,
        arguments=("old_tensor", "index_vector", "new_tensor"),
    ),
    *family("_contrib_count_sketch", gradient=Gradient.INPUTS, arguments=("data", "h", "s")),
    *family(
        """_npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor _npi_insert_scalar
        _npi_insert_slice _npi_insert_tensor""",
        gradient=Gradient.NONE,
    ),
)

# These remember scales or reordered weights from one call to the next.
QUANTIZED = (
    *family(
        """_contrib_calibrate_entropy _contrib_dequantize _contrib_quantize _contrib_quantize_asym
        _contrib_quantize_v2 _contrib_quantized_act _contrib_quantized_concat
        _contrib_quantized_conv _contrib_quantized_elemwise_add _contrib_quantized_elemwise_mul
        _contrib_quantized_embedding _contrib_quantized_flatten _contrib_quantized_fully_connected
        _contrib_quantized_pooling _contrib_quantized_rnn _contrib_requantize _sg_mkldnn_conv
        _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt""",
        gradient=Gradient.NONE,
    ),
    *family("_contrib_quantized_batch_norm", mutates=(3, 4), gradient=Gradient.NONE),
)

RARE = (
    *family(
        """_contrib_dgl_csr_neighbor_non_uniform_sample
        _contrib_dgl_csr_neighbor_uniform_sample""",
        random=True,
        gradient=Gradient.NONE,
    ),
    *family(
        """_contrib_dgl_adjacency _contrib_dgl_graph_compact _contrib_dgl_subgraph _contrib_edge_id
        _contrib_getnnz _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _imdecode multi_lars
        multi_sum_sq""",
        gradient=Gradient.NONE,
    ),
    *family(
        "_contrib_hawkesll",
        UNKNOWN,
        gradient=Gradient.INPUTS,
        arguments=("lda", "alpha", "beta", "state", "lags", "marks", "valid_length", "max_time"),
    ),
)

OPERATORS = (*UPDATES, *MULTI_UPDATES, *CALLS, *PLUMBING, *SCATTERS, *QUANTIZED, *RARE)
