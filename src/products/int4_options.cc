#include <fmt/format.h>

#include <span>
#include <string>

#include "base/error.h"
#include "products/int4.h"
#include "products/int4_paper.h"

namespace jackscrew {

namespace {

// "search" is for the mode `paper`.
constexpr const char* kBlocks = "auto 1 16 32 64 128";
constexpr const char* kInt4Blocks = "auto 1 16 32 64 128 search";
constexpr const char* kBlockHelp =
    "block of the Hadamard transform, which divides the width of every layer: 1 (none), 16, 32, 64 "
    "or 128; auto: the largest that divides it";
constexpr const char* kInt4BlockHelp =
    "block of the Hadamard transform, which divides the width of every layer: 1 (none), 16, 32, 64 "
    "or 128; auto: the largest that divides it, in paper mode up to 32; search: of every layer the "
    "best, in paper mode";

// The first kSharedOptions are read in any mode, the others in the mode `paper` alone.
constexpr OptionSpec kInt4Options[] = {
    {.name = "int4_block",
     .type = OptionType::text,
     .default_text = "auto",
     .help = kInt4BlockHelp,
     .choices = kInt4Blocks},
    {.name = "int4_mode",
     .type = OptionType::text,
     .default_text = "rms",
     .help =
         "how numbers come to four bits: rms (steps of each row, one rounded gradient), or paper "
         "(learned steps, two sampled halves of the gradient: Xi et al. 2023)",
     .choices = "rms paper"},
    {.name = "int4_steps",
     .type = OptionType::text,
     .default_text = "learned",
     .help = "paper mode: steps of W and x are learned, where norms are, or dynamic, of the mean "
             "magnitude",
     .choices = "learned dynamic"},
    {.name = "int4_step_learning_rate",
     .type = OptionType::number,
     .default_text = "2e-4",
     .help = "paper mode: learning rate of the steps, before the schedule",
     .min = 1e-12,
     .max = 1.0,
     .training_only = true},
    {.name = "int4_cold_steps",
     .type = OptionType::integer,
     .default_text = "20",
     .help = "paper mode: optimizer steps in which W's and x's steps are dynamic and start to be "
             "learned at the last of these values",
     .min = 1,
     .max = 1e9,
     .training_only = true},
    {.name = "int4_bit_split",
     .type = OptionType::text,
     .default_text = "6",
     .help = "paper mode: largest magnitude of the gradient's halves: 6 (as published, biased), 7 "
             "(unbiased), or off (the gradient is not rounded)",
     .choices = "6 7 off",
     .training_only = true},
    {.name = "int4_sampling",
     .type = OptionType::text,
     .default_text = "both",
     .help = "paper mode: gradients whose rows are sampled by leverage scores",
     .choices = "both dw dx off",
     .training_only = true}};
constexpr size_t kSharedOptions = 2;  // int4_block and int4_mode

int64_t block_from(const std::string& text) {
  return text == "auto" ? 0 : std::stoll(text);
}

// Refuses options of the mode `paper`, which would be ignored silently.
void refuse_options_of_paper(const OptionSet& options, const std::string& block) {
  for (const OptionSpec& spec : std::span(kInt4Options).subspan(kSharedOptions)) {
    if (!options.is_changed(spec.name)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{}: {}={} is read with int4_mode=paper alone",
                            options.origin(spec.name), spec.name, options.text(spec.name)),
                "set int4_mode=paper, or leave it out");
  }
  if (block != "search") return;
  throw Error(ErrorKind::usage,
              fmt::format("{}: int4_block=search is for int4_mode=paper alone",
                          options.origin("int4_block")),
              "set int4_mode=paper, or int4_block=auto");
}

std::unique_ptr<const Product> make_paper_product(const OptionSet& options,
                                                  const std::string& block) {
  const std::string& split = options.text("int4_bit_split");
  const std::string& sampling = options.text("int4_sampling");
  const bool searches = block == "search";
  const int64_t cold_steps = options.integer("int4_cold_steps");
  if (split == "off" && sampling != "off") {
    throw Error(ErrorKind::usage,
                fmt::format("int4_sampling={} keeps rows of a gradient in halves, which "
                            "int4_bit_split=off does not make",
                            sampling),
                "set int4_sampling=off, too");
  }
  const bool learns_steps = options.text("int4_steps") == "learned";
  for (const char* const name : {"int4_step_learning_rate", "int4_cold_steps"}) {
    if (learns_steps || !options.is_changed(name)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} is of steps that are learned, and int4_steps is dynamic",
                            options.origin(name), name),
                "leave it out, or set int4_steps=learned");
  }
  if (searches && cold_steps < 2) {
    throw Error(ErrorKind::usage,
                "int4_block=search takes the first step, and steps are measured with what it "
                "found, but int4_cold_steps is 1",
                "set int4_cold_steps to 2 or more");
  }
  return make_int4_paper_product({.block = searches ? 0 : block_from(block),
                                  .searches_block = searches,
                                  .learns_steps = learns_steps,
                                  .step_learning_rate = options.number("int4_step_learning_rate"),
                                  .cold_steps = cold_steps,
                                  .split_limit = split == "off" ? 0 : std::stoll(split),
                                  .samples_dw = sampling == "both" || sampling == "dw",
                                  .samples_dx = sampling == "both" || sampling == "dx"});
}

std::unique_ptr<const Product> make_by_mode(const OptionSet& options) {
  const std::string& block = options.text("int4_block");
  if (options.text("int4_mode") == "paper") return make_paper_product(options, block);
  refuse_options_of_paper(options, block);
  return make_int4_product({.name = "int4", .block = block_from(block)});
}

}  // namespace

ProductEntry int4_entry() {
  return {"int4", kInt4Options,
          [](const OptionSet& options, const Ops&) { return make_by_mode(options); },
          [](const OptionSet& options) { make_by_mode(options); }};
}

ProductEntry w4a8_entry() {
  static constexpr OptionSpec kOptions[] = {{.name = "w4a8_block",
                                             .type = OptionType::text,
                                             .default_text = "auto",
                                             .help = kBlockHelp,
                                             .choices = kBlocks}};
  return {"w4a8", kOptions, [](const OptionSet& options, const Ops&) {
            return make_int4_product(
                {.name = "w4a8", .wide = true, .block = block_from(options.text("w4a8_block"))});
          }};
}

}  // namespace jackscrew
