// The program's entry point: selects the subcommand and turns errors into messages and exit codes.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/launch.h"
#include "cli/not_yet.h"
#include "cli/waiting.h"
#include "recipe/run_options.h"

namespace jackscrew {
namespace {

// A new subcommand is a new row here.
std::vector<Subcommand> command_table() {
  using namespace option_titles;
  return {
      {.name = "train",
       .summary = "fine-tune a model, or train one from scratch",
       .usage = "[RECIPE.yaml] [name=value ...]",
       .examples = {"jackscrew train model=SmolLM2-135M data=train.jsonl output_dir=runs/first",
                    "jackscrew train run.yaml learning_rate=1e-4 method=full"},
       .tables = {kModel, kData, kRecords, kMethod, kSchedule, kMachine, kOutput, kCall},
       .run = run_train,
       .by_ranks = true},
      {.name = "eval",
       .summary = "measure the loss and perplexity of a model",
       .usage = "model=MODEL data=FILE [name=value ...]",
       .examples = {"jackscrew eval model=runs/first data=heldout.jsonl",
                    "jackscrew eval model=SmolLM2-135M data=a.jsonl,book.txt stride=512 --json"},
       .tables = {kModel, kData, kRecords, kEvaluation, kMachine, kCall},
       .run = run_eval},
      {.name = "plan",
       .summary = "show the memory that a training run needs, and what would reduce it",
       .usage = "[RECIPE.yaml] [name=value ...]",
       .examples = {"jackscrew plan run.yaml device_memory=16GiB",
                    "jackscrew plan model=llama-7b init=random method=full",
                    "jackscrew plan model=model.gguf method=lora sequence_len=4096 --json"},
       .tables = {kModel, kData, kMethod, kSchedule, kMachine, kOutput, kCall},
       .run = run_plan},
      {.name = "generate",
       .summary = "generate text from a prompt",
       .usage = "model=M prompt=TEXT [name=value ...]",
       .examples = {"jackscrew generate model=runs/mine prompt=\"What is a jackscrew?\"",
                    "jackscrew generate model=model.gguf prompt=Hello temperature=0.8 top_p=0.95",
                    "jackscrew generate model=runs/mine < prompt.txt",
                    "jackscrew generate model=model.gguf adapter=runs/lora prompt=Hello --json"},
       .tables = {kModel, kGeneration, kMachine, kCall},
       .run = run_generate},
      {.name = "chat",
       .summary = "chat with a model, one message per line",
       .usage = "model=M [name=value ...]",
       .examples =
           {"jackscrew chat model=runs/mine",
            "jackscrew chat model=model.gguf system=\"Answer in one sentence.\" temperature=0.7"},
       .tables = {kModel, kGeneration, kMachine, kCall},
       .run = run_chat},
      {.name = "inspect",
       .summary = "show what is in a model, a shape or an adapter",
       .usage = "PATH [--verbose] [--json]",
       .examples = {"jackscrew inspect model.gguf", "jackscrew inspect runs/lora --verbose",
                    "jackscrew inspect llama-60m --json"},
       .tables = {kCall},
       .run = run_inspect},
      {.name = "data",
       .summary = "show how data are read, tokenized and trained on",
       .usage = "preview|stats|tokenize model=M data=D [name=value ...]",
       .examples = {"jackscrew data preview model=model.gguf data=train.jsonl",
                    "jackscrew data stats model=model.gguf data=train.jsonl sequence_len=512",
                    "jackscrew data tokenize model=model.gguf data=book.txt --json"},
       .tables = {kModel, kData, kRecords, kSchedule, kCall},
       .run = run_data},
      {.name = "merge",
       .summary = "make one model of a model and adapters",
       .usage = "model=M adapter=A[,A] output_dir=DIR|output=FILE.gguf [name=value ...]",
       .examples = {"jackscrew merge model=SmolLM2-135M adapter=runs/lora output_dir=merged",
                    "jackscrew merge model=model.gguf adapter=runs/lora output=merged.gguf "
                    "storage=q8_0 eval_data=heldout.jsonl max_merge_loss=0.01",
                    "jackscrew merge model=M adapter=a,b adapter_weight=0.7,0.3 output_dir=both "
                    "storage=bf16"},
       .tables = {kModel, kConversion, kMachine, kCall},
       .run = run_merge},
      {.name = "export",
       .summary = "write a model as files for other programs: GGUF, Hugging Face",
       .usage = "model=M output_dir=DIR|output=FILE.gguf [name=value ...]",
       .examples = {"jackscrew export model=runs/mine output=mine.gguf storage=q8_0",
                    "jackscrew export model=model.gguf output_dir=model-hf storage=bf16"},
       .tables = {kModel, kConversion, kMachine, kCall},
       .run = run_export},
      {.name = "quantize",
       .summary = "round a model to few bits, calibrated on text (GPTQ, EXL2)",
       .usage = "model=M [adapter=A[,A]] data=FILE output_dir=DIR [name=value ...]",
       .examples =
           {"jackscrew quantize model=SmolLM2-135M data=train.jsonl output_dir=gptq bits=4",
            "jackscrew quantize model=M data=book.txt output_dir=small bits=3 group_size=64 "
            "desc_act=true eval_data=heldout.jsonl",
            "jackscrew quantize format=exl2 bits=4.25 model=M data=book.txt output_dir=D",
            "jackscrew quantize model=M adapter=runs/lora data=book.txt output_dir=D",
            "jackscrew quantize model=M data=book.txt output_dir=D --dry-run"},
       .tables = {kModel, kData, kRecords, kQuantisation, kConversion, kMachine, kCall},
       .run = run_quantise},
      {.name = "compare",
       .summary = "show how far models are from the first of them: loss, KL, size, speed",
       .usage = "MODEL MODEL [MODEL ...] eval_data=FILE [name=value ...]",
       .examples = {"jackscrew compare SmolLM2-135M q8_0.gguf q4_k.gguf eval_data=heldout.jsonl"},
       .tables = {kData, kRecords, kMachine, kCall},
       .run = run_compare},
      {.name = "report",
       .summary = "write report.html of a training run from its log, also while it is running",
       .usage = "OUTPUT_DIR",
       .examples = {"jackscrew report runs/mine"},
       .tables = {},
       .run = run_report},
      {.name = "logits",
       .summary = "write a text's ids and logits to a safetensors file",
       .usage = "model=M data=FILE output=OUT.safetensors [name=value ...]",
       .examples = {"jackscrew logits model=model.gguf data=book.txt output=logits.safetensors"},
       .tables = {kModel, kData, kRecords, kMachine, kCall},
       .run = run_logits,
       .hidden = true},
      {.name = "doctor",
       .summary = "show what the program finds on this machine",
       .usage = "[--json]",
       .examples = {"jackscrew doctor", "mpirun -n 2 --bind-to none jackscrew doctor"},
       .tables = {},
       .run = run_doctor,
       .by_ranks = true},
      {.name = "config",
       .summary = "write, check and explain recipes",
       .usage = "init METHOD [--all] | validate FILE.yaml [name=value ...] | schema",
       .examples = {"jackscrew config init lora > run.yaml",
                    "jackscrew config validate run.yaml learning_rate=1e-4",
                    "jackscrew config schema > recipe.schema.json"},
       .tables = {},
       .run = run_config},
  };
}

const Subcommand& find_command(const std::vector<Subcommand>& commands, const std::string& name) {
  std::vector<std::string> names = {"help"};
  for (const Subcommand& command : commands) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  if (const NotYet* known = not_yet(name)) {
    throw Error(ErrorKind::usage, fmt::format("no command \"{}\": {}", name, known->what),
                known->hint);
  }
  const auto nearest = nearest_name(name, names);
  throw Error(ErrorKind::usage, fmt::format("unknown command \"{}\"", name),
              nearest ? fmt::format("did you mean {}?", *nearest)
                      : std::string("jackscrew --help lists the commands"));
}

[[noreturn]] void refuse_ranks(const std::string& command) {
  throw Error(ErrorKind::usage,
              fmt::format("{} is the work of one process; {} were started together", command,
                          launched_ranks()),
              "start it without mpirun; train alone is shared by several ranks");
}

bool asks_for_help(Arguments arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return false;
    if (argument == "-h" || argument == "--help") return true;
  }
  return false;
}

int dispatch(Arguments arguments) {
  const std::vector<Subcommand> commands = command_table();
  if (arguments.empty()) {
    write_stderr(program_help(commands));
    return static_cast<int>(ErrorKind::usage);
  }
  const std::string& name = arguments[0];
  if (name == "--version" || name == "-V") {
    fmt::print("{}", version_text());
    return 0;
  }
  const bool is_help = name == "help" || name == "--help" || name == "-h";
  if (is_help && arguments.size() == 1) {
    fmt::print("{}", program_help(commands));
    return 0;
  }
  const Subcommand& command = find_command(commands, is_help ? arguments[1] : name);
  if (is_help || asks_for_help(arguments.subspan(1))) {
    fmt::print("{}", command_help(command));
    return 0;
  }
  if (!command.by_ranks && launched_ranks() > 1) refuse_ranks(command.name);
  return command.run(arguments.subspan(1));
}

// Whether mpirun started this process as a rank other than 0, which does the talking.
bool is_other_rank() {
  try {
    return launched_rank() > 0;
  } catch (const Error&) {
    return false;
  }
}

int guarded_main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    const int exit_code = dispatch(arguments);
    flush_output();
    return exit_code;
  } catch (const Error& error) {
    // All ranks find the same error in a command line; only rank 0 reports it.
    if (error.kind() == ErrorKind::usage && is_other_rank()) return error.exit_code();
    return report_error(error.what(), error.hint(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report_error("out of host memory",
                        "use a smaller model, batch or sequence_len, or fewer threads",
                        static_cast<int>(ErrorKind::does_not_fit));
  } catch (const fs::filesystem_error& error) {  // links that lead in a circle, for example
    return report_error(fmt::format("{}: {}", error.path1().string(), error.code().message()), "",
                        1);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return report_error(kOutputLost, "", 1);
    return report_error(error.what(), "this is a bug in jackscrew: please report it", 1);
  }
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  jackscrew::open_missing_descriptors();
  jackscrew::wait_politely(argv);
  const jackscrew::BusErrors bus_errors;  // a mapped file cut short is an error with its name
  std::signal(SIGXFSZ, SIG_IGN);          // so is a limit on the size of files (ulimit -f)
  return jackscrew::guarded_main(argc, argv);
}
