#include "recipe/schedule_options.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kScheduleOptions[] = {
    {.name = "micro_batch_size",
     .type = integer,
     .default_text = "1",
     .help = "sequences per forward and backward pass",
     .aliases = "per_device_train_batch_size batch_size",
     .min = 1,
     .max = 1048576},
    {.name = "gradient_accumulation_steps",
     .type = integer,
     .default_text = "1",
     .help = "micro-batches per optimizer step",
     .min = 1,
     .max = 1048576},
    {.name = "max_steps",
     .type = integer,
     .default_text = "0",
     .help = "optimizer steps of the run; 0: as many as num_train_epochs takes",
     .min = 0,
     .max = 268435455},
    {.name = "num_train_epochs",
     .type = number,
     .default_text = "3",
     .help = "passes over the data, when max_steps is 0",
     .aliases = "num_epochs epochs",
     .min = 0,
     .max = 1e9},
    {.name = "learning_rate",
     .type = number,
     .default_text = "auto",
     .help = "peak learning rate; auto: the method's default",
     .aliases = "lr",
     .choices = "auto",
     .min = 0},
    {.name = "lr_scheduler_type",
     .type = text,
     .default_text = "cosine",
     .help =
         "learning rate schedule after warm-up: constant (elsewhere constant_with_warmup) linear "
         "cosine",
     .aliases = "lr_scheduler",
     .choices = kSchedules.words},
    {.name = "warmup_ratio",
     .type = number,
     .default_text = "0.03",
     .help = "fraction of the steps used for warm-up",
     .min = 0,
     .max = 1},
    {.name = "warmup_steps",
     .type = integer,
     .default_text = "auto",
     .help = "warm-up steps; auto: from warmup_ratio",
     .choices = "auto",
     .min = 0,
     .max = 268435455},
    {.name = "weight_decay",
     .type = number,
     .default_text = "0",
     .help = "decoupled weight decay",
     .min = 0},
    {.name = "weight_decay_target",
     .type = text,
     .default_text = "matrices",
     .help = "what decays: matrices, or all (norms and biases too)",
     .choices = "matrices all"},
    {.name = "max_grad_norm",
     .type = number,
     .default_text = "1.0",
     .help = "gradient clipping norm; 0: no clipping",
     .min = 0},
    {.name = "max_grad_norm_of",
     .type = text,
     .default_text = "model",
     .help =
         "what is clipped: model (the norm of all gradients), or weight (each weight's gradient by "
         "itself, to the share of that norm that it had in the last step; with update=fused)",
     .choices = "model weight"},
    {.name = "adam_beta1",
     .type = number,
     .default_text = "0.9",
     .help = "decay of the first moment, below 1",
     .min = 0,
     .max = 1},
    {.name = "adam_beta2",
     .type = number,
     .default_text = "0.999",
     .help = "decay of the second moment, below 1",
     .min = 0,
     .max = 1},
    {.name = "adam_epsilon",
     .type = number,
     .default_text = "1e-8",
     .help = "added to the root of the second moment",
     .min = 1e-30},  // 0 / 0 for a weight whose gradients were all 0; in f32 with room to spare
    {.name = "seed",
     .type = integer,
     .default_text = "42",
     .help = "random seed",
     .aliases = "random_state",
     .min = 0},
};

// A number that is 0 in f32 would silently do what 0 does.
void refuse_vanishing(const char* name, double value, const char* hint) {
  if (!(value > 0) || value >= static_cast<double>(std::numeric_limits<float>::min())) return;
  throw Error(ErrorKind::usage,
              fmt::format("{} is {}, less than numbers of f32 can be", name, value), hint);
}

}  // namespace

std::span<const OptionSpec> schedule_options() {
  return kScheduleOptions;
}

const char* without_effect(const OptionSet& options, std::string_view name) {
  const auto unless = [](bool used, const char* where) { return used ? nullptr : where; };
  if (name == "num_train_epochs") {
    return unless(options.integer("max_steps") == 0, " beside max_steps");
  }
  if (name == "warmup_ratio") {
    return unless(options.is_word("warmup_steps"), " beside warmup_steps");
  }
  if (name == "weight_decay_target") {
    return unless(options.number("weight_decay") > 0, " without weight_decay");
  }
  if (name == "max_grad_norm_of") {
    return unless(options.number("max_grad_norm") > 0, " without max_grad_norm");
  }
  return nullptr;
}

std::string doubt_of_rate(double learning_rate) {
  if (learning_rate == 0) return "learning_rate is 0: nothing learns";
  // An exponent has lost its sign. Beyond, no rate of 1e-9 or less is meant, and the run soon ends.
  constexpr double kMost = 1e9;
  if (learning_rate < 1 || learning_rate > kMost) return {};
  const int exponent = static_cast<int>(std::floor(std::log10(learning_rate)));
  std::string doubt =
      fmt::format("learning_rate is {:.3g}, and usual ones are 1e-2 at most", learning_rate);
  if (exponent > 0) {
    doubt +=
        fmt::format(": was {:.3g}e-{} meant?", learning_rate / std::pow(10.0, exponent), exponent);
  }
  return doubt;
}

void ScheduleSettings::read(const OptionSet& options) {
  micro_batch_size = options.integer("micro_batch_size");
  gradient_accumulation_steps = options.integer("gradient_accumulation_steps");
  max_steps = options.integer("max_steps");
  num_train_epochs = options.number("num_train_epochs");
  learning_rate = options.number("learning_rate");
  refuse_vanishing("learning_rate", learning_rate, "leave it out: auto is the method's default");
  lr_schedule = kSchedules[options.text("lr_scheduler_type")];
  warmup_ratio = options.number("warmup_ratio");
  warmup_steps = options.integer_unless_word("warmup_steps");
  weight_decay.matrices = options.number("weight_decay");
  weight_decay.vectors = options.text("weight_decay_target") == "all" ? weight_decay.matrices : 0.0;
  // Learners check the rates that they multiply it by.
  check_weight_decay(weight_decay.matrices, learning_rate,
                     fmt::format("learning_rate {}", learning_rate));
  max_grad_norm = options.number("max_grad_norm");
  refuse_vanishing("max_grad_norm", max_grad_norm, "1 is usual; 0 turns clipping off");
  clip_each_weight = options.text("max_grad_norm_of") == "weight";
  adam_beta1 = options.number("adam_beta1");
  adam_beta2 = options.number("adam_beta2");
  adam_epsilon = options.number("adam_epsilon");
  seed = static_cast<uint64_t>(options.integer("seed"));
  if (max_steps == 0 && num_train_epochs <= 0) {
    throw Error(ErrorKind::usage, "max_steps and num_train_epochs are both 0", "set one of them");
  }
  if (max_steps > 0 && warmup_steps.value_or(0) >= max_steps) {
    throw Error(
        ErrorKind::usage,
        fmt::format("warmup_steps {} is not less than max_steps {}", *warmup_steps, max_steps),
        fmt::format("the learning rate would never reach its peak; set warmup_steps to at most {}",
                    max_steps - 1));
  }
  for (const auto& [name, beta] :
       {std::pair{"adam_beta1", adam_beta1}, std::pair{"adam_beta2", adam_beta2}}) {
    if (beta < 1) continue;
    throw Error(ErrorKind::usage, fmt::format("{} is {}, must be below 1", name, beta), "");
  }
}

}  // namespace jackscrew
