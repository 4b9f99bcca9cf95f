#include "session/fit.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "session/advice.h"
#include "session/knobs.h"
#include "session/place.h"

namespace jackscrew {

namespace {

std::optional<Fit> fastest_of_method(const Recipe& recipe, const ModelFiles& files) {
  for (const Choice& choice : combinations(knobs_of(recipe, files))) {
    auto changed = rehearse_with(recipe, files, choice.settings);
    if (!changed || !fits(changed->recipe, changed->plan)) continue;
    return Fit{std::move(changed->recipe), choice.settings, std::move(changed->plan)};
  }
  return std::nullopt;
}

// The storage with which a use that trains nothing takes less, as a part of a hint; empty: none.
const char* storage_hint(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                         const SessionPlan& plan, const MemoryBudget& budget) {
  // What is kept as it is may lie in the map of its file, and then takes nothing.
  const auto kept = rehearse_use_with(recipe, files, "storage=keep", use);
  if (kept && budget.holds(kept->ledger.peak, kept->host.peak)) return ", set storage=keep,";
  const auto halved = rehearse_use_with(recipe, files, "storage=bf16", use);
  return halved && halved->ledger.peak < plan.ledger.peak ? ", set storage=bf16," : "";
}

std::string hint_for(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                     const SessionPlan& plan, const MemoryBudget& budget) {
  if (!use.training) {
    const char* storage = use.compares ? "" : storage_hint(recipe, files, use, plan, budget);
    return fmt::format("{}{} or {}", recipe.device_memory ? "raise it" : "close other programs",
                       storage, use.remedy);
  }
  const auto advice = fitting_advice(recipe, files, plan, budget, use.place);
  if (!advice) {
    return "no settings that were tried would fit; `jackscrew plan` shows what takes the memory";
  }
  return fmt::format("{} needs {}", advice->settings, advice->needs());
}

// Host memory of a run that is not booked: generated code, scratch and heaps of threads, stacks,
// file buffers, and page tables, which grow with what is booked. Measured on a CPU, beside 615 MiB
// of an f32 run: 13 MiB with one thread and 7 more with each of 31 others. Where the lengths of
// micro-batches vary, oneDNN's primitives come to 20 to 38 MiB more (kernels/cpu/gemm.cc).
// Objects of tensors that learn (slots, states, names) take 2.5 KiB for each once a model is loaded
// (LoRA and DoRA with adamw_8bit over 1000 blocks), and about 1 more while a checkpoint lists them;
// the first kTensorsWithin, as many as a usual model has, are within the rest.
// On the host of an H100, where CUDA and its libraries are, 297 to 358 MiB
// (bench/results/h100-2026-11-26.log); 16 MiB more are pinned where masters are copied beside the
// steps.
int64_t beside_the_ledger(int64_t booked, int64_t learning_tensors, const Recipe& recipe,
                          bool beside_gpu) {
  constexpr int64_t kTensorBytes = 4096;
  constexpr int64_t kTensorsWithin = 1024;
  const int64_t mib = beside_gpu ? int64_t{400} : int64_t{48} + int64_t{8} * recipe.threads;
  const int64_t tensors = std::max<int64_t>(0, learning_tensors - kTensorsWithin);
  return (mib << 20) + booked / 256 + checked_mul(tensors, kTensorBytes);
}

// Why bytes of the machine's memory are refused.
struct Shortage {
  int64_t left;      // for what is booked, and for data, files and decompositions
  std::string text;  // what follows on the words that say what is needed
};

// What booked bytes and `more`, known to the byte as well, lack, beside which the program takes
// `beside`. `budgeted`: what is free on the machine is the user's business.
std::optional<Shortage> find_shortage(int64_t booked, int64_t more, int64_t beside, bool budgeted) {
  const int64_t bytes = checked_add(booked, more);
  const int64_t all = checked_add(bytes, beside);
  // Checked even with a budget: a process that exceeds a memory limit is killed.
  if (const auto limit = memory_limit(); limit && all > limit->available) {
    return Shortage{
        limit->available - beside,
        fmt::format(" and {} of its own, but {}", human_bytes(beside), left_text(*limit, all))};
  }
  const int64_t available = budgeted ? 0 : available_memory_bytes();
  if (available == 0 || bytes <= available) return std::nullopt;
  return Shortage{available, fmt::format(", but only {} is free on this machine",
                                         human_bytes(available, bytes))};
}

}  // namespace

bool budgets_machine(const Recipe& recipe, const SessionPlan& plan, const Device& device) {
  const bool host = recipe.host_memory.has_value();
  if (device.own_memory()) return host;
  return recipe.device_memory.has_value() && (host || plan.host.peak == 0);
}

std::optional<Fit> fastest_fit(const Recipe& recipe, const ModelFiles& files) {
  return of_first_method(recipe, files,
                         [&](const Recipe& one) { return fastest_of_method(one, files); });
}

void require_fit(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan) {
  MemoryBudget budget{recipe.device_memory, recipe.host_memory, {}};
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::does_not_fit, what, hint_for(recipe, files, use, plan, budget));
  };
  const int64_t peak = plan.ledger.peak;
  const int64_t host = plan.host.peak;
  const auto needed = [&](int64_t available) {
    return fmt::format("this run needs {} ({})", human_bytes(peak, available),
                       purposes_text(plan.ledger));
  };
  const auto needed_on_host = [&](int64_t available) {
    return fmt::format("this run needs {} on the host{}", human_bytes(host, available),
                       host > 0 ? fmt::format(" ({})", purposes_text(plan.host)) : "");
  };
  if (budget.host && host > *budget.host) {
    refuse(fmt::format("{}, budget {} (host_memory)", needed_on_host(*budget.host),
                       human_bytes(*budget.host, host)));
  }
  if (budget.device && peak > *budget.device) {
    refuse(fmt::format("{}, budget {} ({})", needed(*budget.device),
                       human_bytes(*budget.device, peak), budget_option(recipe)));
  }
  const auto device = open_device(recipe);
  const std::optional<int64_t> own = device->bookable_memory();
  if (own && !budget.device) budget.device = own;
  if (own && peak > *budget.device) {
    refuse(fmt::format("{}, but only {} is free on {}", needed(*own), human_bytes(*own, peak),
                       device->name()));
  }
  // What lies in the machine's memory; beside a GPU that is what the host keeps.
  const int64_t in_machine = own ? host : peak + host;
  const auto all_needed = [&](int64_t available) {
    if (own) return needed_on_host(available);
    return needed(available) +
           (host > 0 ? fmt::format(" and {} for masters", human_bytes(host)) : "");
  };
  // What takes less than a hundredth is not worth words.
  const auto beside_it = [&](int64_t bytes, const char* purpose) {
    return bytes < std::max<int64_t>(1, in_machine / 100)
               ? ""
               : fmt::format(" and {} for {}", human_bytes(bytes), purpose);
  };
  constexpr const char* kFilesInMemory = "files of output_dir, which is in memory (tmpfs)";
  const std::string for_more = beside_it(use.data_bytes, "data") +
                               beside_it(use.file_bytes, kFilesInMemory) +
                               beside_it(plan.decomposition_bytes, "the largest decomposition");
  const int64_t beside = beside_the_ledger(in_machine, plan.gradients, recipe, own.has_value());
  const auto shortage_with = [&](int64_t more) {
    return find_shortage(in_machine, more, beside, budgets_machine(recipe, plan, *device));
  };
  const int64_t without_files = checked_add(use.data_bytes, plan.decomposition_bytes);
  const auto shortage = shortage_with(checked_add(without_files, use.file_bytes));
  if (!shortage) return;
  const std::string what = all_needed(shortage->left) + for_more + shortage->text;
  if (!shortage_with(without_files)) {
    throw Error(ErrorKind::does_not_fit, what, "give an output_dir on a disk");
  }
  const int64_t left = shortage->left - use.data_bytes - use.file_bytes;
  // Beside a GPU, what is advised is taken to need as much for decompositions.
  if (own) {
    budget.host = std::max<int64_t>(0, left - plan.decomposition_bytes);
  } else {
    budget.together = std::max<int64_t>(0, left);
  }
  refuse(what);
}

void require_host_memory(int64_t booked, const Recipe& recipe, const std::string& hint,
                         int64_t held) {
  const auto shortage =
      find_shortage(booked, 0, beside_the_ledger(booked, 0, recipe, false), false);
  if (!shortage) return;
  throw Error(
      ErrorKind::does_not_fit,
      fmt::format("this needs {} of memory{}{}", human_bytes(booked, shortage->left),
                  held > 0 ? fmt::format(" beside {} that it holds", human_bytes(held)) : "",
                  shortage->text),
      hint);
}

bool has_room(const Recipe& recipe, const ModelFiles& files, const SessionUse& use) {
  try {
    require_fit(recipe, files, use, Session::rehearse(recipe, files, use));
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::does_not_fit) throw;
    return false;
  }
}

MachineMemory machine_memory(const Recipe& recipe, const SessionUse& use, const SessionPlan& plan) {
  const auto device = open_device(recipe);
  const bool beside = device->own_memory().has_value();
  MachineMemory out;
  out.needed = plan.host.peak + (beside ? 0 : plan.ledger.peak);
  out.needed += beside_the_ledger(out.needed, plan.gradients, recipe, beside);
  out.needed = checked_add(out.needed, use.data_bytes);
  out.needed = checked_add(out.needed, use.file_bytes);
  out.needed = checked_add(out.needed, plan.decomposition_bytes);
  if (const auto limit = memory_limit()) out.available = limit->available;
  const int64_t available = available_memory_bytes();  // 0: not known
  if (!budgets_machine(recipe, plan, *device) && available > 0) {
    out.available = std::min(available, out.available.value_or(available));
  }
  return out;
}

}  // namespace jackscrew
