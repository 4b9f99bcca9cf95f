// jackscrew doctor: reports what the program finds on this machine.
#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_object.h"
#include "base/parallel.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/doctor_ranks.h"
#include "cli/help.h"
#include "cli/launch.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "parallel/transport.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"

namespace jackscrew {

namespace {

const char* isa_meaning(IsaLevel level) {
  switch (level) {
    case IsaLevel::v3:
      return "AVX2 and FMA; product=f32, int8, int4, w4a8";
    case IsaLevel::v4:
      return "AVX-512; product=f32, int8, int4, w4a8";
    case IsaLevel::v4_vnni:
      return "AVX-512 with int8 dot products; product=f32, int8, int4, w4a8";
    case IsaLevel::v4_bf16:
      return "AVX-512 with int8 and bf16 dot products; product=f32, int8, int4, w4a8, bf16";
    case IsaLevel::v4_amx:
      return "AVX-512 and AMX; product=f32, int8, int4, w4a8, bf16";
  }
  return "?";
}

JsonObject json_of(bool found, const std::string& text) {
  return JsonObject().add("found", found).add("text", text);
}

struct Machine {
  IsaLevel isa;
  int threads;
  int64_t memory;
  int64_t available;  // of memory
  std::optional<MemoryLimit> limit;
  std::string onednn;           // version
  std::string pattern_unicode;  // versions of Unicode
  std::string nfc_unicode;
  std::vector<DeviceReport> devices;
  TransportReport mpi;
  std::vector<RankProbe> ranks;  // of processes that were started together, if they were
};

Machine examine_machine(const Recipe& recipe, std::vector<RankProbe> ranks) {
  const dnnl_version_t& dnnl = *dnnl_version();
  return {.isa = detect_isa(),
          .threads = usable_threads(),
          .memory = total_memory_bytes(),
          .available = available_memory_bytes(),
          .limit = memory_limit(),
          .onednn = fmt::format("{}.{}.{}", dnnl.major, dnnl.minor, dnnl.patch),
          .pattern_unicode = pattern_unicode_version(),
          .nfc_unicode = nfc_unicode_version(),
          .devices = device_reports(recipe.python_environments),
          .mpi = transport_report(),
          .ranks = std::move(ranks)};
}

void print_machine_json(const Machine& machine) {
  JsonObject json;
  json.add("version", JACKSCREW_VERSION).add("cpu", cpu_name()).add("isa", isa_name(machine.isa));
  json.add("threads", machine.threads).add("memory_total", machine.memory);
  json.add("memory_available", machine.available);
  if (const auto& limit = machine.limit) {
    json.add("memory_limit",
             JsonObject().add("bytes", limit->bytes).add("group", limit->group.string()));
  }
  json.add("onednn", machine.onednn);
  json.add("unicode",
           JsonObject().add("patterns", machine.pattern_unicode).add("nfc", machine.nfc_unicode));
  JsonObject devices;
  for (const DeviceReport& report : machine.devices) {
    devices.add(report.name, json_of(report.found, report.text));
  }
  json.add("devices", devices);
  json.add("mpi", json_of(machine.mpi.found, machine.mpi.text));
  JsonObject ranks;
  for (size_t i = 0; i < machine.ranks.size(); ++i) {
    const RankProbe& rank = machine.ranks[i];
    ranks.add(std::to_string(i), JsonObject()
                                     .add("host", rank.host)
                                     .add("latency", rank.latency)
                                     .add("bytes_per_second", rank.bytes_per_second));
  }
  if (!ranks.empty()) json.add("ranks", ranks);
  fmt::print("{}\n", json.text());
}

void print_machine(const Machine& machine) {
  fmt::print("{}", version_text());
  fmt::print("CPU: {}\n", cpu_name());
  fmt::print("instruction set: {} ({})\n", isa_name(machine.isa), isa_meaning(machine.isa));
  fmt::print("threads: {}\n", machine.threads);
  if (machine.memory == 0) {
    fmt::print("memory: unknown\n");
  } else {
    fmt::print("memory: {}, {} free\n", human_bytes(machine.memory),
               human_bytes(machine.available));
  }
  if (const auto& limit = machine.limit) {
    fmt::print("memory limit: {} ({}), {} left\n", human_bytes(limit->bytes), limit->group.string(),
               human_bytes(limit->available));
  }
  fmt::print("oneDNN: {}\n", machine.onednn);
  fmt::print("Unicode of tokenizers: {} in patterns, {} in NFC\n", machine.pattern_unicode,
             machine.nfc_unicode);
  for (const DeviceReport& report : machine.devices) {
    fmt::print("{}: {}{}\n", report.name,
               report.found ? "" : "missing (only device=cuda needs it): ", report.text);
  }
  fmt::print("MPI: {}{}\n", machine.mpi.found ? "" : "missing: ", machine.mpi.text);
  for (size_t i = 0; i < machine.ranks.size(); ++i) {
    const RankProbe& rank = machine.ranks[i];
    fmt::print("rank {}: {}", i, rank.host);
    if (i > 0) {
      fmt::print(", {:.0f} us and {:.2f} GB/s from rank 0", 1e6 * rank.latency,
                 1e-9 * rank.bytes_per_second);
    }
    fmt::print("\n");
  }
}

int examine(const Recipe& recipe) {
  const auto ranks = open_transport({.ranks = launched_ranks()});
  std::vector<RankProbe> probes;
  if (ranks != nullptr) {
    probes = try_ranks(*ranks);
    ranks->close();
    if (ranks->rank() != 0) return 0;
  }
  const Machine machine = examine_machine(recipe, std::move(probes));
  if (recipe.json) {
    print_machine_json(machine);
  } else {
    print_machine(machine);
  }
  return 0;
}

}  // namespace

int run_doctor(Arguments arguments) {
  return with_recipe(arguments, 0, "doctor", examine);
}

}  // namespace jackscrew
