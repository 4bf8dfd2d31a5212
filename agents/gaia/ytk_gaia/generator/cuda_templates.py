"""Which parts of a region a GPU runs as templates instead of loops: matrix products and attention. Pure text and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ytk_gaia.generator.attention import AttentionParts
from ytk_gaia.generator.cuda_attention import Attention, AttentionNest, print_attention, tiles_of, with_attentions
from ytk_gaia.generator.cuda_gemm import Product, ProductNest, with_epilogues
from ytk_gaia.generator.cuda_schedules import Printed
from ytk_gaia.generator.cuda_tiles import TILES, GemmTile, fitting, launchable, print_product
from ytk_gaia.generator.nest import Nest


@dataclass(frozen=True)
class Template:
    """One way to cut everything that is a template.

    Attributes:
        gemm: The largest tile of matrix products.
        attention: Which of the ways to cut attention.
        words: For candidate ids: what there is.
    """

    gemm: GemmTile
    attention: int = 0
    words: tuple[str, ...] = ("gemm",)

    @property
    def name(self) -> str:
        """Word for candidate ids."""
        parts = [self.gemm.name] if "gemm" in self.words else []
        return "-".join([*parts, *([f"q{self.attention}"] if "flash" in self.words else [])])


ANY = Template(TILES[-1])


def with_templates(
    nests: Sequence[Nest],
    attentions: Sequence[AttentionParts],
    outputs: frozenset[str],
    roots: Mapping[str, str],
    views: frozenset[str],
) -> list[Nest]:
    """Make nests of their own of what is an attention or a matrix product, with what follows it.

    Args:
        nests: In execution order.
        attentions: That the lowering has named.
        outputs: Buffers that are results of the region.
        roots: Buffer to the one that owns its memory.
        views: Pointers that begin anywhere in a buffer.
    """
    found = with_attentions(attentions, nests, outputs, views)
    return with_epilogues(found, outputs, roots, views)


def parts_in(nests: Sequence[Nest]) -> tuple[list[Product], list[Attention]]:
    """Give the products and attentions among nests."""
    products = [nest.product for nest in nests if isinstance(nest, ProductNest) and nest.product is not None]
    attentions = [nest.attention for nest in nests if isinstance(nest, AttentionNest) and nest.attention is not None]
    return products, attentions


def templates_for(products: Sequence[Product], attentions: Sequence[Attention], sm: int) -> list[Template]:
    """Give the templates that are worth a candidate: each makes another choice for some part."""
    words = tuple(word for word, parts in (("gemm", products), ("flash", attentions)) if parts)
    found, seen = [], set()
    for way in range(max((len(tiles_of(a)) for a in attentions), default=1)):
        for tile in TILES:
            choice = (way, *(fitting(product, tile).name for product in products))
            if words and launchable(tile, sm) and choice not in seen:
                seen.add(choice)
                found.append(Template(tile, way, words))
    return found


def print_template(nest: Nest, template: Template) -> Printed | None:
    """Print a nest that is a template as the body of a device function; None: it is loops."""
    if isinstance(nest, ProductNest) and nest.product is not None:
        return print_product(nest.product, template.gemm)
    if isinstance(nest, AttentionNest) and nest.attention is not None:
        ways = tiles_of(nest.attention)
        return print_attention(nest.attention, ways[min(template.attention, len(ways) - 1)])
    return None
