#include "text/chat/builtin_templates.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace jackscrew {

namespace {

struct Builtin {
  std::string_view name;
  std::string_view source;
};

// An answer may consist of tool calls alone, which these templates do not write: then `content` is
// none.
constexpr Builtin kBuiltins[] = {
    {"chatml", R"jinja(
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})jinja"},

    // The system message goes inside the first question.
    {"llama2", R"jinja(
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' %}
    {%- elif message.role == 'user' %}
        {{- (bos_token or '') + '[INST] ' + (ns.system + message.content) | trim + ' [/INST]' }}
        {%- set ns.system = '' %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + (message.content or '') | trim + ' ' + eos_token }}
    {%- else %}
        {{- raise_exception('a message from "' + message.role + '", which llama2 cannot write') }}
    {%- endif %}
{%- endfor %})jinja"},

    {"llama3", R"jinja(
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
    {{- (message.content or '') | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})jinja"},

    // The system message goes before the first question.
    {"mistral", R"jinja(
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = message.content + '\n\n' %}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' + ns.system + message.content + ' [/INST]' }}
        {%- set ns.system = '' %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + (message.content or '') | trim + eos_token }}
    {%- else %}
        {{- raise_exception('a message from "' + message.role + '", which mistral cannot write') }}
    {%- endif %}
{%- endfor %})jinja"},

    {"zephyr", R"jinja(
{%- for message in messages %}
    {{- '<|' + message.role + '|>\n' + (message.content or '') + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %})jinja"},

    {"alpaca", R"jinja(
{{- bos_token }}
{%- if messages and messages[0].role == 'system' %}
    {{- messages[0].content + '\n\n' }}
{%- else %}
    {{- 'Below is an instruction that describes a task. ' }}
    {{- 'Write a response that appropriately completes the request.\n\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '### Instruction:\n' + message.content + '\n\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '### Response:\n' + (message.content or '') + eos_token + '\n\n' }}
    {%- elif not loop.first or message.role != 'system' %}
        {{- raise_exception('a message from "' + message.role + '", which alpaca cannot write') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '### Response:\n' }}
{%- endif %})jinja"},
};

}  // namespace

std::optional<std::string_view> builtin_template(std::string_view name) {
  const auto found = std::find_if(std::begin(kBuiltins), std::end(kBuiltins),
                                  [&](const Builtin& builtin) { return builtin.name == name; });
  return found == std::end(kBuiltins) ? std::nullopt : std::optional(found->source);
}

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const Builtin& builtin : kBuiltins) names.emplace_back(builtin.name);
  return names;
}

}  // namespace jackscrew
