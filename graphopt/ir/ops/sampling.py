"""Operators that draw from the generator, and the densities that go with them."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_DRAW = OpInfo("", Kind.OPAQUE, pure=False, random=True, gradient=Gradient.NONE)
_DENSITY = OpInfo("", Kind.INJECTIVE, pure=True)

DRAWS = (
    *family(
        """_random_exponential _random_gamma _random_generalized_negative_binomial
        _random_negative_binomial _random_normal _random_poisson _random_randint _random_uniform
        _sample_unique_zipfian""",
        _DRAW,
    ),
    *family(
        """_random_exponential_like _random_gamma_like _random_generalized_negative_binomial_like
        _random_negative_binomial_like _random_normal_like _random_poisson_like
        _random_uniform_like _shuffle""",
        _DRAW,
        arguments=("data",),
    ),
    *family("_sample_exponential _sample_poisson", _DRAW, arguments=("lam",)),
    *family("_sample_gamma", _DRAW, arguments=("alpha", "beta")),
    *family("_sample_generalized_negative_binomial", _DRAW, arguments=("mu", "alpha")),
    *family("_sample_negative_binomial", _DRAW, arguments=("k", "p")),
    *family("_sample_normal", _DRAW, arguments=("mu", "sigma")),
    *family("_sample_uniform", _DRAW, arguments=("low", "high")),
    *family("_sample_multinomial", _DRAW, gradient=Gradient.BOTH, arguments=("data",)),
    *family(
        "_npi_bernoulli _npi_choice _npi_multinomial _npi_powerd _npi_uniform _npi_uniform_n",
        _DRAW,
    ),
    *family(
        """_npi_exponential _npi_gamma _npi_gumbel _npi_logistic _npi_normal _npi_normal_n
        _npi_pareto _npi_rayleigh _npi_weibull""",
        _DRAW,
        gradient=Gradient.BOTH,
    ),
)

DENSITIES = (
    *family("_random_pdf_dirichlet", _DENSITY, kind=Kind.OPAQUE, arguments=("sample", "alpha")),
    *family("_random_pdf_exponential _random_pdf_poisson", _DENSITY, arguments=("sample", "lam")),
    *family("_random_pdf_gamma", _DENSITY, arguments=("sample", "alpha", "beta")),
    *family(
        "_random_pdf_generalized_negative_binomial", _DENSITY, arguments=("sample", "mu", "alpha")
    ),
    *family("_random_pdf_negative_binomial", _DENSITY, arguments=("sample", "k", "p")),
    *family("_random_pdf_normal", _DENSITY, arguments=("sample", "mu", "sigma")),
    *family("_random_pdf_uniform", _DENSITY, arguments=("sample", "low", "high")),
)

OPERATORS = (*DRAWS, *DENSITIES)
