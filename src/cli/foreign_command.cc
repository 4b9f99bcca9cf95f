#include "cli/foreign_command.h"

#include "base/options.h"

namespace jackscrew {

namespace {

constexpr ForeignCommand kForeignCommands[] = {
    {"-v", "the version is shown by --version", "jackscrew --version"},
    {"fuse", "that is done by merge", "jackscrew merge model=MODEL adapter=DIR output_dir=DIR"},
    {"convert", "that is done by export", "jackscrew export model=MODEL output=FILE.gguf"},
    {"quantise gptq", "that is done by quantize",
     "jackscrew quantize model=MODEL data=FILE output_dir=DIR"},
    {"serve server api", "a server is not supported yet",
     "jackscrew chat model=MODEL talks to a model; vLLM and llama.cpp's llama-server serve what "
     "train writes"},
    {"download pull", "the program downloads nothing",
     "hf download ORG/NAME --local-dir NAME (of Hugging Face's huggingface_hub) gets a model; then "
     "model=NAME"},
    {"dpo orpo kto grpo ppo rlhf", "training on preferences or rewards is not supported yet",
     "jackscrew train fine-tunes on answers; of preference data it takes the chosen ones: "
     "field_instruction=prompt field_output=chosen where they are texts, field_messages=chosen "
     "where they are whole conversations; lists of messages beside a list called prompt are to be "
     "called completion in the file"},
    {"finetune sft lora qlora pretrain tune", "that is done by train",
     "jackscrew train model=MODEL data=FILE output_dir=DIR method=lora; jackscrew help train"},
    {"evaluate benchmark test", "that is done by eval", "jackscrew eval model=MODEL data=FILE"},
    {"run infer inference predict complete", "that is done by generate and chat",
     "jackscrew generate model=MODEL prompt=TEXT, or jackscrew chat model=MODEL"},
    {"preprocess tokenize", "that is done by data",
     "jackscrew data tokenize model=MODEL data=FILE"},
};

}  // namespace

const ForeignCommand* foreign_command(std::string_view name) {
  return find_row(kForeignCommands, name);
}

}  // namespace jackscrew
