// The style of pages: light or dark like the reader's system, and printable.
#pragma once

namespace jackscrew {

inline constexpr const char* kReportStyle = R"(
:root { --ink: #1c2024; --dim: #60676f; --ground: #f6f7f8; --card: #ffffff; --grid: #e3e6e9;
  --c1: #2563ad; --c2: #c2570c; --c3: #2f855a; --c4: #8b5cb5; --c5: #b7791f; --c6: #c53030;
  --c7: #319795; --c8: #718096; --c9: #d53f8c; --c10: #5a67d8; --c11: #68a32e; --c12: #97752f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --dim: #9aa2ab; --ground: #15181b;
  --card: #1e2226; --grid: #343a40; --c1: #6ea8e8; --c2: #f0915a; --c3: #68c394; --c4: #b794e0;
  --c5: #e0b050; --c6: #f08080; --c7: #5cc8c4; --c8: #a0aec0; --c9: #f08cc0; --c10: #93a0ff;
  --c11: #a5d66a; --c12: #ccab6a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 24px 16px 48px; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 24px; overflow-wrap: anywhere; }
h2 { margin: 32px 0 12px; font-size: 17px; }
p.lead { margin: 4px 0 20px; color: var(--dim); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px;
  margin-bottom: 12px; }
.numbers div, figure, .sample, pre, table.facts { background: var(--card); border-radius: 8px;
  border: 1px solid var(--grid); }
.numbers div { padding: 12px 14px; }
.numbers b { display: block; font-size: 21px; font-weight: 600; }
.numbers span { color: var(--dim); font-size: 13px; }
.warning { margin: 12px 0; padding: 10px 14px; border-left: 4px solid var(--c6);
  background: var(--card); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
  gap: 12px; }
figure { margin: 0; padding: 12px 14px 6px; }
figcaption { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
.key { color: var(--dim); font-size: 13px; }
.key i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px;
  background: var(--own); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font-size: 12px; }
.grid { stroke: var(--grid); }
.ytick { text-anchor: end; } .xtick { text-anchor: middle; }
.line { fill: none; stroke: var(--own); stroke-width: 1.8; stroke-linejoin: round; }
.band { fill: var(--own); opacity: 0.22; } .area { fill: var(--own); opacity: 0.85; }
circle { fill: var(--own); }
.sample { padding: 12px 14px; margin-bottom: 12px; display: grid; gap: 4px 14px;
  grid-template-columns: 90px 1fr; }
.sample span { color: var(--dim); font-size: 13px; padding-top: 1px; }
.sample div { white-space: pre-wrap; overflow-wrap: anywhere; }
table.facts { width: 100%; border-spacing: 0; padding: 6px 0; }
table.facts td { padding: 4px 14px; overflow-wrap: anywhere; }
table.facts th { padding: 4px 14px; text-align: left; font-weight: 500; color: var(--dim); }
table.facts td:first-child { color: var(--dim); width: 180px; }
pre { margin: 0; padding: 12px 14px; overflow-x: auto; font-size: 13px; }
details summary { cursor: pointer; color: var(--dim); margin: 32px 0 12px; }
.c1 { --own: var(--c1); } .c2 { --own: var(--c2); } .c3 { --own: var(--c3); }
.c4 { --own: var(--c4); } .c5 { --own: var(--c5); } .c6 { --own: var(--c6); }
.c7 { --own: var(--c7); } .c8 { --own: var(--c8); } .c9 { --own: var(--c9); }
.c10 { --own: var(--c10); } .c11 { --own: var(--c11); } .c12 { --own: var(--c12); }
@media print { body { background: none; } figure, .sample { break-inside: avoid; } }
)";

}  // namespace jackscrew
