// jackscrew doctor: reports what the program finds on this machine.
#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "base/json_object.h"
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

// `ranks` are those of processes that were started together; empty if this one was started alone.
int examine_machine(const Recipe& recipe, const std::vector<RankProbe>& ranks) {
  const IsaLevel isa = detect_isa();
  const int64_t total = total_memory_bytes();
  const int64_t available = available_memory_bytes();
  const std::optional<MemoryLimit> limit = memory_limit();
  const dnnl_version_t& dnnl = *dnnl_version();
  const TransportReport mpi = transport_report();
  const std::string onednn = fmt::format("{}.{}.{}", dnnl.major, dnnl.minor, dnnl.patch);
  if (recipe.json) {
    JsonObject json;
    json.add("version", JACKSCREW_VERSION).add("cpu", cpu_name()).add("isa", isa_name(isa));
    json.add("threads", omp_get_num_procs()).add("memory_total", total);
    json.add("memory_available", available);
    if (limit) {
      json.add("memory_limit",
               JsonObject().add("bytes", limit->bytes).add("group", limit->group.string()));
    }
    json.add("onednn", onednn);
    JsonObject devices;
    for (const DeviceReport& report : device_reports(recipe.python_environments)) {
      devices.add(report.name, json_of(report.found, report.text));
    }
    json.add("devices", devices);
    json.add("mpi", json_of(mpi.found, mpi.text));
    JsonObject all_ranks;
    for (size_t i = 0; i < ranks.size(); ++i) {
      all_ranks.add(std::to_string(i), JsonObject()
                                           .add("host", ranks[i].host)
                                           .add("latency", ranks[i].latency)
                                           .add("bytes_per_second", ranks[i].bytes_per_second));
    }
    if (!ranks.empty()) json.add("ranks", all_ranks);
    fmt::print("{}\n", json.text());
    return 0;
  }
  fmt::print("{}", version_text());
  fmt::print("CPU: {}\n", cpu_name());
  fmt::print("instruction set: {} ({})\n", isa_name(isa), isa_meaning(isa));
  fmt::print("threads: {}\n", omp_get_num_procs());
  fmt::print("memory: {}, {} free\n", human_bytes(total), human_bytes(available));
  if (limit) {
    fmt::print("memory limit: {} ({}), {} left\n", human_bytes(limit->bytes), limit->group.string(),
               human_bytes(limit->available));
  }
  fmt::print("oneDNN: {}\n", onednn);
  for (const DeviceReport& report : device_reports(recipe.python_environments)) {
    fmt::print("{}: {}{}\n", report.name, report.found ? "" : "missing: ", report.text);
  }
  fmt::print("MPI: {}{}\n", mpi.found ? "" : "missing: ", mpi.text);
  for (size_t i = 0; i < ranks.size(); ++i) {
    fmt::print("rank {}: {}", i, ranks[i].host);
    if (i > 0) {
      fmt::print(", {:.0f} us and {:.2f} GB/s from rank 0", 1e6 * ranks[i].latency,
                 1e-9 * ranks[i].bytes_per_second);
    }
    fmt::print("\n");
  }
  return 0;
}

int examine(const Recipe& recipe) {
  const auto ranks = open_transport({.ranks = launched_ranks()});
  if (ranks == nullptr) return examine_machine(recipe, {});
  const std::vector<RankProbe> reports = try_ranks(*ranks);
  ranks->close();
  return ranks->rank() == 0 ? examine_machine(recipe, reports) : 0;
}

}  // namespace

int run_doctor(Arguments arguments) {
  return with_recipe(arguments, 0, "doctor", examine);
}

}  // namespace jackscrew
