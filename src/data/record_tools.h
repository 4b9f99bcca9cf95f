// What records say of tools, and to templates, as other programs write it: JSON, or texts of JSON
// at any level.
#pragma once

#include <string>

#include "data/json_tree.h"
#include "text/jinja/value.h"

namespace jackscrew {

// All of these throw Error(data) naming `place`.

// A value as a template sees it.
jinja::Value template_value(const RecordJson& json, const std::string& place);

// The tools at `key`, a list of objects; none where the record has none. Throws for anything else.
jinja::Value tools_of(const RecordJson& record, const std::string& key, const std::string& place);

// The same of OpenAI's older `functions`, each of which becomes a tool.
jinja::Value functions_of(const RecordJson& record, const std::string& place);

// The members of TRL's `chat_template_kwargs`, which become variables of the template. Throws where
// it is no object, and for names that are not the record's to give.
jinja::Variables variables_of(const RecordJson& record, const std::string& place);

// A message's tool calls with what they hold as JSON. Throws where they are no list of objects.
RecordJson calls_of(const RecordJson& list, const std::string& place);

}  // namespace jackscrew
