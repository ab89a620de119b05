"""Device trees as people post them."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.devicetree import parse_device_tree, read_device_tree
from memmodel.sources.quoting import HUNK, undiff, unquote
from memmodel.sources.spans import Span

CASES = Path(__file__).parents[1] / "data" / "cases"
MIB, GIB = 1 << 20, 1 << 30
CELLS = "#address-cells = <2>; #size-cells = <2>; ranges;"
WHOLE = f"""/dts-v1/;
#include <dt-bindings/gpio/gpio.h>
/memreserve/ 0x80000000 0x10000;
/ {{
	#address-cells = <2>;
	#size-cells = <2>;
	memory@80000000 {{ device_type = "memory"; reg = <0 0x80000000 0 0x40000000>, <0 0xc0000000 1 0>; }};
	gpio {{ gpios = <&gpio1 3 GPIO_ACTIVE_HIGH>; label = "}}"; /* }} */ }};
	rmem: reserved-memory {{
		{CELLS}
		pool: linux,cma {{ compatible = "shared-dma-pool"; reusable; size = <0 (32 << 20)>; linux,cma-default; }};
		/omit-if-no-ref/ secure@9e000000 {{ reg = <0 0x9e000000 0 0x2000000>; no-map; qcom,vmid = <VMID_MSS>; }};
		old@1 {{ reg = <0 0x90000000 0 0x1000>; }};
		off {{ size = <0 4096>; status = "disabled"; }};
	}};
}};
&uart {{ status = "okay"; }};
&pool {{ size = <0 0x8000000>; /delete-property/ linux,cma-default; }};
&{{/reserved-memory/linux,cma}} {{ alignment = <0 0x2000>; }};
&rmem {{ /delete-node/ old@1; ramoops@a0000000 {{ compatible = "ramoops"; reg = <0 0xa0000000 0 0x10000>; }}; }};
"""


def case(name):
    return read_device_tree(CASES / name)


def test_read_device_tree__a_whole_file(tmp_path):
    path = tmp_path / "board.dts"
    path.write_bytes(gzip.compress(WHOLE.replace("\n", "\r\n").encode()))
    tree = read_device_tree(path)
    pool, secure, off, ramoops = tree.nodes
    assert (pool.name, pool.labels, pool.line, pool.size_bytes) == ("linux,cma", ("pool",), 11, 128 * MIB)
    assert (pool.is_cma, pool.cma_default, pool.reg, pool.alignment_bytes) == (True, False, None, 0x2000)
    assert (secure.reg, secure.no_map, secure.is_cma, secure.line) == (Span(0x9E000000, 32 * MIB), True, False, 12)
    assert (off.disabled, pool.disabled) == (True, False)
    assert (ramoops.compatible, ramoops.line) == (("ramoops",), 20)
    assert tree.memory == (Span(2 * GIB, 5 * GIB),)
    assert tree.cells == "#address-cells 2, #size-cells 2"
    assert tree.notes == (f"{path}: not read: #include <dt-bindings/gpio/gpio.h>",)
    assert not tree.unsupported


def test_read_device_tree__a_compiled_one(tmp_path):
    path = tmp_path / "board.dtb"
    path.write_bytes(bytes.fromhex("d00dfeed00000048"))
    with pytest.raises(InputError, match="a compiled device tree; its source is read here: dtc -I dtb -O dts"):
        read_device_tree(path)
    with pytest.raises(InputError, match="None is no path of a file"):
        read_device_tree(None)


def test_case__a20_without_reg():
    tree = case("dts-arm32-a20-cma-noreg-01.dts.txt")
    (node,) = tree.nodes
    assert (node.reg, node.size_bytes, node.alignment_bytes) == (None, 96 * MIB, None)
    assert node.alloc_ranges == (Span(0x4A000000, 96 * MIB),)
    assert (node.is_cma, node.cma_default, node.labels, node.line) == (True, True, ("cma_pool",), 6)
    assert tree.notes[0].endswith("6: cma@4a000000: a unit address, and no reg that it names")


def test_case__unbalanced():
    path = CASES / "dts-arm64-cma-unbalanced-01.dts.txt"
    with pytest.raises(InputError) as caught:
        read_device_tree(path)
    assert str(caught.value) == (
        f"{path}:12: found the end of the text with 3 braces open: reserved-memory (line 1), linux,cma (line 5),"
        " ion@200000000 (line 10); each needs its };"
    )
    tree = read_device_tree(path, close_nodes=True)
    (node,) = tree.nodes
    assert (node.reg, node.size_bytes, node.alignment_bytes) == (None, 16 * MIB, 8192)
    assert "closed at the end of the text, as asked" in tree.notes[0]
    assert tree.notes[1] == f"{path}:10: ion@200000000: not looked at, for it stands in linux,cma"


def test_case__a_diff():
    (node,) = case("dts-arm64-imx91-256m-01.dts.txt").nodes
    assert (node.name, node.line, node.size_bytes) == ("linux,cma", 6, 256 * MIB)
    assert node.alloc_ranges == (Span(2 * GIB, GIB),)
    assert node.is_cma
    assert node.cma_default


def test_case__a_quoted_diff():
    tree = case("dts-mips-loongson-notreusable-64m-01.dts.txt")
    (node,) = tree.nodes
    assert (node.reg, node.line) == (Span(0x30000000, 64 * MIB), 6)
    assert (node.is_shared_pool, node.reusable, node.no_map, node.cma_default) == (True, False, False, True)
    assert not node.is_cma


def test_case__zynqmp():
    (node,) = case("dts-arm64-zynqmp-cma-default-01.dts.txt").nodes
    assert (node.reg, node.is_cma, node.cma_default) == (Span(32 * GIB, 2 * GIB), True, True)
    tree = case("dts-arm64-zynqmp-wholepool-01.dts.txt")
    (node,) = tree.nodes
    assert (node.reg, node.alignment_bytes, node.cma_default) == (Span(32 * GIB, 2 * GIB), 4096, False)
    assert tree.memory == (Span(0, 2 * GIB), Span(32 * GIB, 2 * GIB))  # by the values: the root's cells are not shown
    assert tree.notes[-1].endswith('not read: /include/ "system-conf.dtsi"')


@pytest.mark.parametrize(
    ("text", "reg", "cells"),
    [
        ("reg = <0x8 0x0 0x0 0x80000000>;", Span(32 * GIB, 2 * GIB), "2 and 2"),
        ("reg = <0x80000000 0x4000000>;", Span(2 * GIB, 64 * MIB), "1 and 1"),
        ("reg = <0x0 0x30000000 0x0 0x4000000>;", Span(0x30000000, 64 * MIB), "2 and 2"),
        ("reg = <0x30000000 0x4000000 0x40000000 0x4000000>;", Span(0x30000000, 64 * MIB), "1 and 1"),
    ],
)
def test_cells__by_the_values(text, reg, cells):
    tree = parse_device_tree(f'pool {{ compatible = "shared-dma-pool"; reusable; {text} }};', "f")
    assert tree.nodes[0].reg == reg
    assert tree.cells == f"#address-cells and #size-cells not shown: {cells} by the values"
    assert tree.notes == ("pool: no reserved-memory node around it; taken as a child of one",)


def test_cells__size_alone_needs_no_address_width():
    tree = parse_device_tree("reserved-memory { a { size = <0x1000>; }; };", "f")
    assert tree.nodes[0].size_bytes == 4096
    assert tree.cells.endswith("1 and 1 or 2 and 1 by the values")


def test_cells__expressions_and_wide_numbers():
    text = f"reserved-memory {{ {CELLS} a {{ reg = <0 (3 << 0x1e)>, /bits/ 64 <0x4000>; }}; }};"
    assert parse_device_tree(text, "f").nodes[0].reg == Span(3 << 30, 0x4000)


def test_cells__of_the_root():
    text = "/ { #address-cells = <1>; #size-cells = <2>; reserved-memory { a { reg = <1 2 3>; }; }; };"
    assert parse_device_tree(text, "f").nodes[0].reg == Span(1, (2 << 32) + 3)


def test_fragments__taken_as_reserved_memory():
    pool = 'pool { compatible = "shared-dma-pool"; reusable; size = <0 0x4000000>; iommus = <&smmu SID>; };'
    for head in ("&reserved_memory", "&{/reserved-memory}", "&resmem"):
        tree = parse_device_tree(f"&i2c {{ a = <&b>; }}; {head} {{ {pool} }};", "f")
        assert (tree.nodes[0].name, tree.nodes[0].size_bytes) == ("pool", 64 * MIB)
    assert tree.notes == ("&resmem: taken as /reserved-memory, where alone a shared-dma-pool stands",)
    overlay = f'/ {{ fragment@0 {{ target-path = "/"; __overlay__ {{ reserved-memory {{ {CELLS} {pool} }}; }}; }}; }};'
    assert parse_device_tree(overlay, "f").nodes[0].size_bytes == 64 * MIB


def test_diff__cut_at_both_ends():
    text = f"""--- a/board.dts
+++ b/board.dts
@@ -10,6 +10,9 @@ / {{
     reg = <0 0 0 0x80000000>;
   }};
+
+  reserved-memory {{
+    {CELLS}
+    pool {{ compatible = "shared-dma-pool"; reusable; size = <0 0x1000000>; }};
-    old {{ size = <0 0x1000>; }};
+  }};
   soc {{
     ranges;
@@ -99,2 +102,3 @@
   }};
 }};
+&uart {{ status = "okay"; }};
"""
    for quote in ("", "> ", ">> > "):
        quoted = "".join(f"{quote}{row}\n" for row in text.splitlines())
        (node,) = parse_device_tree(quoted, "f").nodes
        assert (node.name, node.size_bytes, node.line) == ("pool", 16 * MIB, 9)


def test_fragments__a_node_named_like_a_label():
    tree = parse_device_tree("soc { pool { a = <&b>; }; }; reserved-memory { pool: a { size = <1>; }; };", "f")
    assert [node.name for node in tree.nodes] == ["a"]


def test_diff__nodes_whose_parent_is_cut_off():
    text = """@@ -51,6 +64,20 @@ linux,cma {
             alloc-ranges = <0 0x98000000 0 0x14000000>;
             linux,cma-default;
         };
+
+        vring: memory@90000000 {
+            reg = <0 0x90000000 0 0x8000>;
+            no-map;
+        };
+        buffer: memory-buffer {
+            compatible = "shared-dma-pool";
+            reg = <0 0x90400000 0 0x100000>;
+            no-map;
+        };
     };
"""
    tree = parse_device_tree(text, "f")
    assert [(node.name, node.line, node.reg.base) for node in tree.nodes] == [
        ("memory@90000000", 6, 0x90000000),
        ("memory-buffer", 10, 0x90400000),
    ]
    assert tree.memory is None
    assert len(tree.notes) == 2


def test_unquote__only_where_most_lines_are():
    assert unquote("> a\n>> b\n\n> > c") == "a\nb\n\nc"
    assert unquote("reg = <1\n>;\n") == "reg = <1\n>;\n"
    assert undiff("a\n b") == ("a\n b", False)
    assert undiff("@@ -1 +1 @@\n+a\n b\n-c\n\td\n+++ x") == (f"{HUNK}\na\nb\n\n\td\n", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a { size = <1>;", "f:1: found the end of the text with 1 braces open: a (line 1)"),
        ("a {\n};\n};", "f:3: found '}'; no node is open here"),
        ("a { /* b };", "f:1: found '/*'; the comment that begins here is not closed"),
        ("\n{ };", "f:2: found ' {'; a node has a name in front of its {"),
        ("a { };", "f:1: found no reserved-memory node with a child"),
        ("reserved-memory { };", "f:1: found no reserved-memory node with a child"),
        ("reserved-memory {\na { size = <SIZE>; }; };", "f:2: found 'SIZE'; size needs numbers"),
        ("reserved-memory {\na { size = <64M>; }; };", "f:2: found '64M'; size needs numbers such as 4096, 0x1000 or"),
        ("reserved-memory {\na { reg = <&b 1>; }; };", "f:2: found '&b'; reg needs numbers"),
        ("reserved-memory {\na { size = <1 }; };", "f:2: no device tree source: expected number"),
        ("reserved-memory {\na { size = <1> }; };", "f:2: no device tree source: expected ';' or ','"),
        ("reserved-memory {\na { size = <1>; } };", "f:2: no device tree source: expected ';'"),
        ("reserved-memory {\na { size = <09>; }; };", "f:2: found '09'; size needs numbers such as 4096, 0x1000 or"),
        ("reserved-memory { a { size = <(1 << 999999)>; }; };", "a shift is by a plain number of one or two digits"),
        (
            "reserved-memory { a { size = <(1 << 0xfffffffff)>; }; };",
            "a shift is by a plain number of one or two digits",
        ),
        ("reserved-memory { a { size = <(1 >> -1)>; }; };", "f:1: no device tree source: negative shift count"),
        ("reserved-memory { a { size = <(1 / 0)>; }; };", "f:1: no device tree source: division by zero"),
        (f"reserved-memory {{ a {{ size = <{'(' * 5000}>; }}; }};", "f:1: no device tree source: maximum recursion"),
        ("reserved-memory { a { size = <(1 << (9))>; }; };", "a shift is by a plain number of one or two digits"),
        ("reserved-memory {\n...\na { size = <1>; }; };", "f:3: found '...'; only a name stands before the { of a"),
        ("reserved-memory { a { size = <1>; ...\nno-map; }; };", "f:1: found '... no-map;'; a property is"),
        ("reserved-memory {\nPOOL(a, 1);\n a { size = <1>; }; };", "f:2: found 'POOL(a, 1);'; a property is"),
        ("reserved-memory {\n#ifdef A\na { size = <1>; };\n#endif\n};", "f:2: found '#ifdef A'; give the text after"),
        ("reserved-memory { a { size = <0>; }; };", "and by the values neither 1 nor 2 cells fit"),
        ("reserved-memory { a { reg = <8 0 0x80000000>; }; };", "by the values 1 + 2 or 2 + 1 cells fit"),
        ("reserved-memory {\na { reusable; }; };", "f:2: a: neither reg nor size"),
        (f"reserved-memory {{ {CELLS} a {{ size = <4096>; }}; }};", "f:1: a: size has 1 cells; 2 by the parent node"),
        (f"reserved-memory {{ {CELLS} a {{ reg = <1 2 3>; }}; }};", "f:1: a: reg has 3 cells; an entry has 2 + 2"),
        (f"reserved-memory {{ {CELLS} a {{ size = <0 0>; }}; }};", "f:1: a: size is 0"),
        (
            f"reserved-memory {{ {CELLS} a {{ size = <0 1>; alignment = <0 3>; }}; }};",
            "alignment 0x3 is no power of two",
        ),
        (f"reserved-memory {{ {CELLS} a {{ reg = <9999999 0 0 1>; }}; }};", "no memory is so"),
        (f"reserved-memory {{ {CELLS} a {{ reg = <0 0 0 9 0 8 0 9>; }}; }};", "has regions that overlap"),
        ('reserved-memory { a { size = "64M"; }; };', "f:1: a: found 'size = \"64M\";'; size is numbers in < >"),
        ("reserved-memory { a { compatible = <1>; size = <1>; }; };", "f:1: a: compatible is no text in quotes"),
        ("reserved-memory { #size-cells = <3>; a { size = <1>; }; };", "#size-cells is [3]; allowed: 1, 2"),
        ("&cma { size = <0 1>; reusable; };", "f:1: found '&cma'; the reserved-memory node it changes is not in the"),
        ("@@ -1 +1 @@\n reserved-memory {\n+a { };\n", "f:2: found 'reserved-memory {'; its closing brace is not in"),
        ("a { " * 80, "f:1: found 'a'; nodes are at most 64 deep here"),
    ],
)
def test_parse_device_tree__refused_in_one_line(text, message):
    with pytest.raises(InputError) as caught:
        parse_device_tree(text, "f")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/dts-v1/; / { reserved-memory { a { size = <1>; }; }; };", "reserved-memory has no #address-cells"),
        (
            "/dts-v1/; / { reserved-memory { #address-cells = <1>; #size-cells = <1>; a { size = <1>; }; }; };",
            "reserved-memory has no ranges",
        ),
        (
            "/ { #size-cells = <1>; #address-cells = <1>; reserved-memory { " + CELLS + " a { size = <0 1>; }; }; };",
            "reserved-memory has another #address-cells than the root node",
        ),
        ("#include <soc.dtsi>\n/dts-v1/; / { reserved-memory { a { size = <1>; }; }; };", ""),
    ],
)
def test_unsupported__as_the_kernel_checks_it(text, words):
    assert parse_device_tree(text, "f").unsupported == words


@settings(deadline=None, max_examples=300)
@given(
    text=st.lists(
        st.sampled_from(
            [
                *("reserved-memory {", "a {", "};", "}", "{", "/ {", "&a {", "a: b {", "memory@0 {", "\n", "+", "@@\n"),
                *("size = <1>;", "reg = <0 1 0 1>;", "reg = <", ">", ";", "<<", "(", '"', "/*", "*/", "//", "..."),
                *("reusable;", 'compatible = "shared-dma-pool";', "#size-cells = <2>;", "#if\n", "/delete-node/ a;"),
                *("/delete-node/ &a;", "/include/ ", "/bits/ 64 <1>;", "'", "&{/reserved-memory} {", "\\", "é", "\f"),
            ]
        ),
        max_size=24,
    ).map(" ".join)
    | st.text(max_size=60)
)
def test_parse_device_tree__junk_gives_input_error_only(text):
    for close_nodes in (False, True):
        try:
            found = len(parse_device_tree(text, "f", close_nodes=close_nodes).nodes)
        except InputError as error:
            found = "\n" not in str(error) and len(str(error)) < 500
        assert found
