"""The collection of passes. The mechanism they plug into is :mod:`graphopt.pipeline`.

A literal table: naming a pass imports it, listing the names imports nothing.
"""

if __name__ != "graphopt.passes":
    raise ImportError("import graphopt.passes, not the bare folder 'passes'")

from graphopt.pipeline.spec import Registry

PASSES = {
    "inline-onednn": "graphopt.passes.inline_onednn:InlineOnednn",
    "infer-types": "graphopt.passes.infer_types:InferTypes",
    "eliminate-dead-code": "graphopt.passes.dce:EliminateDeadCode",
    "eliminate-common-subexpressions": "graphopt.passes.cse:EliminateCommonSubexpressions",
    "replace-numpy": "graphopt.passes.replace_numpy:ReplaceNumpy",
    "replace-loss-heads": "graphopt.passes.replace_loss_heads:ReplaceLossHeads",
    "remove-identities": "graphopt.passes.remove_identities:RemoveIdentities",
    "fold-constants": "graphopt.passes.fold_constants:FoldConstants",
    "simplify-algebra": "graphopt.passes.simplify_algebra:SimplifyAlgebra",
    "cancel-layout": "graphopt.passes.cancel_layout:CancelLayout",
    "fold-batch-norm": "graphopt.passes.fold_batch_norm:FoldBatchNorm",
    "batch-norm-to-convolution": (
        "graphopt.passes.batch_norm_to_convolution:BatchNormToConvolution"
    ),
    "select-gemm": "graphopt.passes.select_gemm:SelectGemm",
    "select-convolution": "graphopt.passes.select_convolution:SelectConvolution",
    "pack-products": "graphopt.passes.pack_products:PackProducts",
    "select-recurrence": "graphopt.passes.select_recurrence:SelectRecurrence",
    "replace-dense": "graphopt.passes.replace_dense:ReplaceDense",
    "merge-parallel-gemm": "graphopt.passes.merge_parallel_gemm:MergeParallelGemm",
    "parallelize-batch-dot": "graphopt.passes.parallelize_batch_dot:ParallelizeBatchDot",
    "parallelize-interleaved": "graphopt.passes.parallelize_interleaved:ParallelizeInterleaved",
    "replace-dropout": "graphopt.passes.replace_dropout:ReplaceDropout",
    "expand-lengths": "graphopt.passes.expand_lengths:ExpandLengths",
    "fuse-loss-heads": "graphopt.passes.fuse_loss_heads:FuseLossHeads",
    "expand-pick": "graphopt.passes.expand_pick:ExpandPick",
    "reroll-recurrence": "graphopt.passes.reroll_recurrence:RerollRecurrence",
    "import-foreach": "graphopt.passes.import_foreach:ImportForeach",
    "hoist-projections": "graphopt.passes.hoist_projections:HoistProjections",
    "import-rnn": "graphopt.passes.import_rnn:ImportRnn",
    "hoist-lookups": "graphopt.passes.hoist_lookups:HoistLookups",
    "fuse-batch-norm": "graphopt.passes.fuse_batch_norm:FuseBatchNorm",
    "fuse-convolutions": "graphopt.passes.fuse_convolutions:FuseConvolutions",
    "fuse-reduction": "graphopt.passes.fuse_reduction:FuseReduction",
    "fuse-attention": "graphopt.passes.fuse_attention:FuseAttention",
    "fuse-pointwise": "graphopt.passes.fuse_pointwise:FusePointwise",
}

ALIASES = {
    "dce": "eliminate-dead-code",
    "cse": "eliminate-common-subexpressions",
}

_CLEAN = "infer-types,eliminate-dead-code,replace-numpy,eliminate-common-subexpressions"

_ROLL = (
    "fold-constants,reroll-recurrence,import-foreach,hoist-projections,"
    "fold-constants,simplify-algebra,cancel-layout"
)

_FUSE = (
    "import-rnn,hoist-lookups,parallelize-batch-dot,parallelize-interleaved,expand-lengths,"
    "expand-pick,fuse-reduction,fuse-pointwise"
)

#: ``default`` is legal in every mode; what a mode does not allow is refused with a remark.
PIPELINES = {
    "none": "",
    "training": (
        f"{_CLEAN},{_ROLL},remove-identities,eliminate-common-subexpressions,eliminate-dead-code,select-convolution,fuse-batch-norm,fuse-loss-heads,{_FUSE},replace-dropout,fuse-attention"
    ),
    # Dropout does nothing here; a step that has it would not be found to be one.
    "inference": (
        f"inline-onednn,{_CLEAN},remove-identities,{_ROLL},replace-loss-heads,remove-identities,fold-batch-norm,batch-norm-to-convolution,"
        "merge-parallel-gemm,simplify-algebra,eliminate-common-subexpressions,"
        f"eliminate-dead-code,select-convolution,fuse-convolutions,{_FUSE},fuse-attention"
    ),
    "default": "inference",
}

registry = Registry(PASSES, ALIASES, PIPELINES)
