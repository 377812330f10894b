"""Dynamic batching: runs an unmodified Gluon Block over many samples in few large calls.

Every sample runs as plain Python, but what it asks of MXNet is only written down; calls that are
alike are then made once for all samples. `batched` has the public class; README of the parts:

    recording   hooks (what is replaced in MXNet), recorder, lazy (values), arithmetic, indexing,
                sums, kinds and runs (types and places of rows)
    deciding    library (what is known), entries and special (operators), rules (which operators
                leave rows apart), blocks and unit (child HybridBlocks), fixed (of parameters only),
                numbers (those that differ from sample to sample)
    running     agenda, plan, execute, gather, signature, operators
    samples     samples (greenlets), outputs, statistics
"""
