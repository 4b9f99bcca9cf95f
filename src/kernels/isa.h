// Instruction-set levels of x86-64 CPUs that have code of their own, chosen at run time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace jackscrew {

// Ordered: each level includes those before it.
enum class IsaLevel : int {
  v3,       // AVX2, FMA, F16C
  v4,       // AVX-512 F, BW, CD, DQ, VL
  v4_vnni,  // and int8 dot products
  v4_bf16,  // and bf16 dot products
  v4_amx    // and AMX, by which oneDNN sums bf16 products in another order
};

// "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx".
const char* isa_name(IsaLevel level);
std::optional<IsaLevel> parse_isa(std::string_view name);
// What choose_isa() takes: "auto" and the names of all levels, separated by spaces.
const std::string& isa_names();

// The highest level of this machine. Throws Error(device) on a CPU below x86-64-v3.
IsaLevel detect_isa();

// Picks a level: `requested` is "auto" or a level's name. Throws Error(usage) for an unknown name
// and Error(device) for a level above this machine's. Also limits oneDNN to the level, which is
// possible once in a process, before its first use: choose once, at start. Throws Error(device)
// where oneDNN computes with another level already.
IsaLevel choose_isa(std::string_view requested);

// The CPU's name for itself, "unknown" if it has none.
std::string cpu_name();

}  // namespace jackscrew
