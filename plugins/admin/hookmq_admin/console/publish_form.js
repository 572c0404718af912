// A form that makes a message. It calls `publish` with the fields that the API has.
import { area, check, choice, field, form, node } from "./dom.js";

export function publishForm(publish, topic = "") {
  return form([
    field("Topic", "topic", { required: true, value: topic }), choice("QoS", "qos", ["0", "1", "2"]), check("Retain", "retain"),
    area("Payload", "payload"),
    node("details", { class: "wide" }, node("summary", {}, "Properties"), node("div", { class: "bar" },
      field("Content type", "content_type", { placeholder: "application/json" }), field("Response topic", "response_topic"),
      field("Expires after (s)", "message_expiry_interval", { type: "number", min: 0, max: 4294967295 }),
      area("User properties, one per line: name=value", "user_properties"))),
  ], "Publish", (given) => publish(read(given)), { class: "bar", "aria-label": "Publish" });
}

function read({ qos, message_expiry_interval, user_properties, content_type, response_topic, ...rest }) {
  const pairs = user_properties.split("\n").filter((line) => line.trim()).map((line) => {
    const [name, ...value] = line.split("=");
    return [name.trim(), value.join("=").trim()];
  });
  return {
    ...rest, qos: Number(qos), ...(content_type && { content_type }), ...(response_topic && { response_topic }),
    ...(message_expiry_interval && { message_expiry_interval: Number(message_expiry_interval) }), ...(pairs.length && { user_properties: pairs }),
  };
}
