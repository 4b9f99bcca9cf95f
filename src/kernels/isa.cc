#include "kernels/isa.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "base/error.h"

namespace jackscrew {

namespace {
constexpr std::array<IsaLevel, 5> kLevels = {IsaLevel::v3, IsaLevel::v4, IsaLevel::v4_vnni,
                                             IsaLevel::v4_bf16, IsaLevel::v4_amx};

// The rest of x86-64-v3, which a virtual machine may hide by itself: the compiler uses all of it.
// Clang 14's __builtin_cpu_supports has no names for these.
bool has_f16c_movbe_lzcnt() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned basic = 0;
  unsigned extended = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &basic, &d) == 0) return false;
  if (__get_cpuid(0x80000001, &a, &b, &extended, &d) == 0) return false;
  return (basic & bit_F16C) != 0 && (basic & bit_MOVBE) != 0 && (extended & bit_LZCNT) != 0;
}

// AMX as oneDNN uses it: the CPU has its tiles and both their products, and the kernel keeps the
// tiles' registers for those who ask for them, as oneDNN does.
bool has_amx() {
  constexpr unsigned kTilesAndProducts = 1U << 22 | 1U << 24 | 1U << 25;  // CPUID.7.EDX
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned features = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0) return false;
  constexpr unsigned long kTileData = 1UL << 18;  // the state's bit in XCR0
  unsigned long supported = 0;
  return (features & kTilesAndProducts) == kTilesAndProducts &&
         syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &supported) == 0 &&
         (supported & kTileData) != 0;
}

// What oneDNN calls the level.
dnnl::cpu_isa onednn_isa(IsaLevel level) {
  switch (level) {
    case IsaLevel::v3:
      return dnnl::cpu_isa::avx2;
    case IsaLevel::v4:
      return dnnl::cpu_isa::avx512_core;
    case IsaLevel::v4_vnni:
      return dnnl::cpu_isa::avx512_core_vnni;
    case IsaLevel::v4_bf16:
      return dnnl::cpu_isa::avx512_core_bf16;
    case IsaLevel::v4_amx:
      break;
  }
  return dnnl::cpu_isa::avx512_core_amx;
}

// The level that oneDNN computes with, nullopt: one below all. To ask decides it for the rest of
// the process.
std::optional<IsaLevel> level_in_use(IsaLevel machine) {
  const dnnl::cpu_isa effective = dnnl::get_effective_cpu_isa();
  if (effective == dnnl::cpu_isa::sse41 || effective == dnnl::cpu_isa::avx) return std::nullopt;
  for (const IsaLevel level : kLevels) {
    if (level < machine && effective == onednn_isa(level)) return level;
  }
  return machine;
}

}  // namespace

const char* isa_name(IsaLevel level) {
  switch (level) {
    case IsaLevel::v3:
      return "x86-64-v3";
    case IsaLevel::v4:
      return "x86-64-v4";
    case IsaLevel::v4_vnni:
      return "x86-64-v4-vnni";
    case IsaLevel::v4_bf16:
      return "x86-64-v4-bf16";
    case IsaLevel::v4_amx:
      return "x86-64-v4-amx";
  }
  return "?";
}

std::optional<IsaLevel> parse_isa(std::string_view name) {
  for (const IsaLevel level : kLevels) {
    if (name == isa_name(level)) return level;
  }
  return std::nullopt;
}

const std::string& isa_names() {
  static const std::string kNames = [] {
    std::string names = "auto";
    for (const IsaLevel level : kLevels) names += fmt::format(" {}", isa_name(level));
    return names;
  }();
  return kNames;
}

IsaLevel detect_isa() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                  __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
                  has_f16c_movbe_lzcnt();
  if (!v3) {
    throw Error(ErrorKind::device, "this CPU lacks AVX2, FMA, F16C or BMI (x86-64-v3)",
                "Jackscrew needs a CPU of 2013 (Intel Haswell) or 2015 (AMD Excavator) or later");
  }
  const bool v4 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  if (!v4) return IsaLevel::v3;
  if (__builtin_cpu_supports("avx512vnni") == 0) return IsaLevel::v4;
  if (__builtin_cpu_supports("avx512bf16") == 0) return IsaLevel::v4_vnni;
  return has_amx() ? IsaLevel::v4_amx : IsaLevel::v4_bf16;
}

IsaLevel choose_isa(std::string_view requested) {
  const IsaLevel machine = detect_isa();
  const auto level = requested == "auto" ? machine : parse_isa(requested);
  if (!level) {
    throw Error(ErrorKind::usage, fmt::format("isa={} is not a level", requested),
                fmt::format("use one of: {}", isa_names()));
  }
  if (*level > machine) {
    throw Error(ErrorKind::device,
                fmt::format("isa={} asked for, but this CPU has {}", requested, isa_name(machine)),
                "use isa=auto");
  }
  if (*level < machine && dnnl::set_max_cpu_isa(onednn_isa(*level)) == dnnl::status::success) {
    return *level;
  }
  if (const auto used = level_in_use(machine); used != *level) {
    const std::string name = used ? isa_name(*used) : "less than x86-64-v3";
    throw Error(ErrorKind::device,
                fmt::format("isa={} asked for, but oneDNN computes with {} in this process",
                            requested, name),
                fmt::format("{}start another process for another level; ONEDNN_MAX_CPU_ISA must "
                            "not be set for isa=auto",
                            used ? fmt::format("use isa={}, or ", name) : ""));
  }
  return *level;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace jackscrew
