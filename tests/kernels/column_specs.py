"""Specs that reduce axes which others come behind."""

SOFTMAX = "f32[a|b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }"
SPECS = {
    "sum": "f32[a|b|c] (f32[a,b,c]) { %1 = reduce_sum %0; return %1:f32[a,c] }",
    "softmax": SOFTMAX,
    "log_softmax": SOFTMAX.replace("softmax", "log_softmax"),
    "layer norm": (
        "f32[a|b|c] (f32[a,b,c], f32[b], f32[b]) { %3 = normalize %0 1e-05; %4 = mul %3 %1;"
        " %5 = add %4 %2; return %5:f32[a,b,c] }"
    ),
    # Weights of each element of a row, the same for all rows.
    "attention": (
        "f32[a|b|c] (f32[a,b,1], f32[a,b,c]) { %2 = softmax %0; %3 = mul %1 %2;"
        " %4 = reduce_sum %3; return %4:f32[a,1,c] }"
    ),
    "leading axis": (
        "f32[|a|b] (f32[a,b], f32[b]) { %2 = add %0 %1; %3 = sin %2; %4 = reduce_sum %3;"
        " %5 = mul %2 %4; return %5:f32[a,b], %4:f32[b] }"
    ),
    "all kinds of operands": (
        "f32[a|b|c] (f32[a,b,c], f32[a,1,1], f32[1,1,c], f32[b,1], f32[1]) { %5 = mul %0 %1;"
        " %6 = add %5 %2; %7 = mul %6 %3; %8 = square %7; %9 = reduce_sum %8; %10 = sqrt %9;"
        " %11 = add %10 %4; %12 = div %7 %11; return %12:f32[a,b,c], %11:f32[a,c] }"
    ),
    # The gradient of the first input is a sum of what is the same all along a row.
    "added to data": (
        "f32[a|b|c] (f32[a,b,1], i32[a,b,c]) { %2 = add %0 %1; %3 = reduce_sum %2;"
        " return %3:f32[a,1,c] }"
    ),
    "storage": (
        "f32[a|b|c] (f16[a,b,c], i32[b,1]) { %2 = mul %0 %1; %3 = softmax %2;"
        " return %3:f16[a,b,c] }"
    ),
    "float64": (
        "f64[a|b|c] (f64[a,b,c]) { %1 = reduce_min %0; %2 = tanh %1; return %2:f64[a,1,c] }"
    ),
    "kept": (  # an exponential that two walks need
        "f32[a|b|c] (f32[a,b,c], f32[b,1]) { %2 = exp %0; %3 = exp %1; %4 = add %2 %3;"
        " %5 = reduce_sum %4; %6 = mul %2 %5; %7 = mul %6 %3; %8 = reduce_sum %7; %9 = add %8 %2;"
        " return %9:f32[a,b,c] }"
    ),
}
