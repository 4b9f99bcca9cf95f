#include "recipe/record_options.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kRecordOptions[] = {
    {.name = "field_messages",
     .type = text,
     .default_text = "",
     .help = "key of a record's list of messages; empty: messages or conversations"},
    {.name = "field_instruction",
     .type = text,
     .default_text = "",
     .help = "key of a record's question, with its answer in field_output; empty: instruction"},
    {.name = "field_input",
     .type = text,
     .default_text = "",
     .help = "key of what is put below the question, if a record has it; empty: input"},
    {.name = "field_output",
     .type = text,
     .default_text = "",
     .help = "key of the answer; empty: output"},
    {.name = "field_system",
     .type = text,
     .default_text = "",
     .help = "key of the system prompt, if a record has one; empty: system"},
    {.name = "field_tools",
     .type = text,
     .default_text = "",
     .help = "key of the list of tools, if a record has one; empty: tools"},
    {.name = "field_text",
     .type = text,
     .default_text = "",
     .help = "key of a text without a question, all of it trained on; empty: text",
     .aliases = "dataset_text_field"},
    {.name = "message_field_role",
     .type = text,
     .default_text = "",
     .help = "key of the role in each message; empty: role, or from (ShareGPT)"},
    {.name = "message_field_content",
     .type = text,
     .default_text = "",
     .help = "key of the text in each message; empty: content, or value (ShareGPT)"},
    {.name = "on_bad_record",
     .type = text,
     .default_text = "error",
     .help = "a record that cannot be read: error ends the command, skip leaves it out and counts",
     .choices = "error skip"},
};

}  // namespace

std::span<const OptionSpec> record_options() {
  return kRecordOptions;
}

void RecordSettings::read(const OptionSet& options) {
  for (const RecordField& field : kRecordFields) fields.*field.name = options.text(field.option);
  fields.role = options.text("message_field_role");
  fields.content = options.text("message_field_content");
  skip_bad_records = options.text("on_bad_record") == "skip";
}

}  // namespace jackscrew
