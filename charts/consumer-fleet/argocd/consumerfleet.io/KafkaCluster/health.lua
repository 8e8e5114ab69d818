-- Health of a KafkaCluster for Argo CD: Healthy while its brokers answer with the given credentials, Degraded when they
-- do not, Progressing before the first poll. Base library only: Argo CD opens neither `string` nor `math`.

local metadata = obj.metadata or {}
local status = obj.status or {}

local ready, sized, coordinators
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    ready = condition
  elseif condition.type == "OffsetsTopicSized" then
    sized = condition
  elseif condition.type == "CoordinatorsAvailable" then
    coordinators = condition
  end
end

if metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "being deleted" }
end
if ready == nil or (status.observedGeneration or -1) < (metadata.generation or 0) then
  return { status = "Progressing", message = "the operator has not seen this generation yet" }
end

local message = ready.message or ""
if ready.status == "True" and sized ~= nil and sized.status == "False" then
  message = message .. "; " .. (sized.message or "")
end
if ready.status == "True" and coordinators ~= nil and coordinators.status == "False" then
  message = message .. "; " .. (coordinators.message or "")
end
if ready.status == "True" then
  return { status = "Healthy", message = message }
end
message = (ready.reason or "Ready") .. ": " .. message
if ready.status == "False" then
  return { status = "Degraded", message = message }
end
return { status = "Progressing", message = message }
