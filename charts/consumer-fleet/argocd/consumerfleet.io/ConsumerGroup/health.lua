-- Health of a ConsumerGroup for Argo CD, judged by its status for the newest generation:
--   Healthy      the wanted revision runs with all wanted workers
--   Progressing  not seen yet, being checked, being rolled out, or waiting for an external cause (a node, an image)
--   Degraded     the wanted revision is refused, even while another revision serves, or the fleet needs attention
--   Suspended    spec.suspend, or the annotation consumerfleet.io/paused
-- Base library only: Argo CD opens neither `string` nor `math` for scripts in argocd-cm.

local metadata = obj.metadata or {}
local spec = obj.spec or {}
local status = obj.status or {}

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function words(kind)
  local reason, message = conditions[kind].reason or kind, conditions[kind].message or ""
  if message == "" then
    return reason
  end
  return reason .. ": " .. message
end

local function health(code, message)
  return { status = code, message = message }
end

if metadata.deletionTimestamp ~= nil then
  return health("Progressing", "being deleted")
end
if (metadata.annotations or {})["consumerfleet.io/paused"] == "true" then
  return health("Suspended", "the annotation consumerfleet.io/paused is set: the operator changes nothing")
end
if metadata.generation ~= nil and (status.observedGeneration or -1) < metadata.generation then
  return health("Progressing", "the operator has not seen generation " .. metadata.generation .. " yet")
end
if spec.suspend then
  return health("Suspended", "spec.suspend is true: no workers run")
end
if conditions.Ready == nil then
  return health("Progressing", "the operator has not judged the group yet")
end

local serving = ""
if conditions.Serving ~= nil and (conditions.Serving.message or "") ~= "" then
  serving = "; " .. conditions.Serving.message
end
-- Words for notifications. Without a number of records, so that Argo CD's Application does not change with each of them.
local notes = ""
if ((status.retry or {}).failed or 0) > 0 then
  notes = notes .. "; FailedRecords: the failed topic has records"
end
if is("UpgradeAvailable", "True") and conditions.UpgradeAvailable.reason == "UpgradeStopped" then
  notes = notes .. "; " .. words("UpgradeAvailable")
end
if is("Stalled", "True") then
  return health("Degraded", words("Stalled") .. serving)
end
if is("Progressing", "True") then
  return health("Progressing", words("Progressing") .. serving)
end
if is("Degraded", "True") then
  return health("Degraded", words("Degraded") .. notes)
end
if is("Ready", "True") then
  return health("Healthy", words("Ready") .. notes)
end
return health("Progressing", words("Ready"))
